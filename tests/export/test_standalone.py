"""The file `standalone.py` in every exported model: it runs without fluid, with only JAX and NumPy installed."""

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import venv
import zipfile

import jax
import numpy as np
import pytest
from export.test_artifact import a_zip, decode_step, digits, encoder, params_of, sentiment

import fluid
from fluid.export import standalone

RNG = np.random.default_rng(0)

# This script runs exported models in an environment without fluid. For each array of an answer, it prints the dtype,
# the shape and the numbers, as `contents` returns them.
PROGRAM = """
import json, sys
import jax, numpy as np
import standalone

for name in ("fluid", "optax", "orbax"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} is here")

answers = []
for path, entry, feeds, seed in json.load(sys.stdin):
    run = standalone.load(path, entry, seed)
    arrays = [np.asarray(leaf) for feed in feeds for leaf in jax.tree.leaves(run(feed))]
    answers.append([[str(a.dtype), list(a.shape), a.tolist()] for a in arrays])
print(json.dumps(answers))
"""


def contents(results):
    """Return the dtype, the shape and the numbers of every array in `results`."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(list(results))]
    return [[str(a.dtype), list(a.shape), a.tolist()] for a in arrays]


def needed(*names):
    """Return the names of packages, and of all packages that they require."""
    found = []
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.append(name)
        required = importlib.metadata.requires(name) or []
        waiting += [re.match(r"[\w.-]+", each)[0] for each in required if "extra ==" not in each]
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return the interpreter of a virtual environment that has only JAX, NumPy and their requirements."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in map(importlib.metadata.distribution, needed("jax", "jaxlib", "numpy")):
        for top in {pathlib.PurePath(file).parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            (packages / top).symlink_to(distribution.locate_file(top))
    return folder / "bin" / "python"


def run(python, *arguments, folder, text=None):
    """Run the interpreter in a folder, without PYTHONPATH; return the completed process."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([python, *arguments], cwd=folder, input=text, capture_output=True, text=True, env=outside)


def extracted(path, folder):
    """Copy the file `standalone.py`, which every exported model contains, to a folder."""
    with zipfile.ZipFile(path) as archive:
        (folder / "standalone.py").write_bytes(archive.read("standalone.py"))


@pytest.mark.sample(2)
def test_reader_without_fluid_answers_as_an_inferencer(python, tmp_path):
    def noisy():
        x = fluid.layers.data("x", shape=[3])
        return x + fluid.layers.gaussian_random_batch_size_like(x, shape=[-1, 3])

    several = {"encode": encoder, "decode_step": decode_step}
    cases = [
        (digits, None, [{"image": RNG.normal(size=(n, 1, 8, 8)).tolist()} for n in (1, 3)]),
        (sentiment, None, [{"words": [[1, 2, 3], [4]]}, {"words": [[1] * 9]}]),
        (noisy, None, [{"x": [[1, 2, 3], [4, 5, 6]]}, {"x": [[1, 2, 3]]}]),
        (several, "decode_step", [{"state": [[1, 2, 3, 4]], "word": [[1]]}]),
        (several, "encode", [{"words": [[1, 2], [3], []]}]),
    ]
    questions, wanted = [], []
    for number, (program, entry, feeds) in enumerate(cases):
        path = tmp_path / f"{number}.fluid"
        functions = program if entry else {None: program}
        params = {n: v for function in functions.values() for n, v in params_of(function).items()}
        fluid.io.save_inference_model(path, program, params)
        seed = 7 if program is noisy else None
        inferencer = fluid.Inferencer(param_path=path, entry=entry, bucket=False, seed=seed)
        questions.append([str(path), entry, feeds, seed])
        wanted.append([found for feed in feeds for found in contents(inferencer.infer(feed))])
    extracted(path, tmp_path)
    done = run(python, "-c", PROGRAM, folder=tmp_path, text=json.dumps(questions))
    assert done.returncode == 0, done.stderr
    # An Inferencer compiles parameters as constants, so that XLA may round differently.
    for found, expected in zip(json.loads(done.stdout), wanted, strict=True):
        for mine, theirs in zip(found, expected, strict=True):
            assert mine[:2] == theirs[:2]
            np.testing.assert_allclose(mine[2], theirs[2], rtol=1e-6, atol=1e-7)


def test_reader_prints_the_content_of_a_file(python, tmp_path):
    path = tmp_path / "digits.fluid"
    fluid.io.save_inference_model(path, digits, params_of(digits))
    extracted(path, tmp_path)
    done = run(python, "standalone.py", path, folder=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("predict") and "'name': 'image'" in done.stdout
    _, entries = standalone.read(path)
    with zipfile.ZipFile(path) as archive:
        sums = archive.read("SHA256SUMS")
    path.write_bytes(a_zip(**entries | {"manifest.json": b"{}"}, SHA256SUMS=sums))
    done = run(python, "standalone.py", path, folder=tmp_path)
    assert done.returncode == 1 and "is not what was written" in done.stderr


def test_the_reader_is_short():
    text = pathlib.Path(fluid.__file__).parent.joinpath("export", "standalone.py").read_text()
    assert len(text.splitlines()) <= 160 and "import fluid" not in text


def test_earlier_file_error_names_its_reader():
    earlier = pathlib.Path(__file__).parents[1] / "data" / "artifact" / "dense.fluid"
    with pytest.raises(ValueError, match="the standalone.py inside it"):
        standalone.load(earlier)
