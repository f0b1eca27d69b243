"""A check of a wheel and an sdist: run `python packaged.py WHEEL SDIST` in an environment with the installed wheel.

The wheel must contain the type stubs and the templates of `fluid new`. The sdist must contain every file of `fluid/` in
the wheel. A program must train with only the packages that fluid requires.
"""

import pathlib
import subprocess
import sys
import tarfile
import zipfile

import numpy as np

import fluid


def program():
    x, y = fluid.layers.data("x", shape=[2]), fluid.layers.data("y", shape=[1])
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))


def main(wheel, sdist):
    """Check the files in the wheel and the sdist, train, save and load a model, and run the command `fluid`."""
    assert "site-packages" in fluid.__file__, fluid.__file__
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {"fluid/py.typed", "fluid/__init__.pyi", "fluid/layers/__init__.pyi"} <= held
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    missing = {name for name in held if name.startswith("fluid/")} - sources
    assert not missing and {"README.md", "LICENSE", "pyproject.toml"} <= sources, missing
    x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    reader = fluid.reader.arrays({"x": x, "y": x[:, :1] - 2 * x[:, 1:]}, batch_size=16)
    trainer.train(reader, num_epochs=20)
    assert float(trainer.test(reader)[0]) < 1e-3
    trainer.save_params("line.params")
    again = fluid.Trainer(program, fluid.optimizer.SGD(0.1), param_path="line.params")
    assert float(again.test(reader)[0]) == float(trainer.test(reader)[0])
    command = pathlib.Path(sys.executable).with_name("fluid")
    help_text = subprocess.run([command, "--help"], check=True, capture_output=True, text=True).stdout
    assert "serve" in help_text
    subprocess.run([command, "new", "flowers"], check=True, stdout=subprocess.DEVNULL)
    template = "fluid/cli/template/"
    files = {name.removeprefix(template).removesuffix(".txt") for name in held if name.startswith(template)}
    assert "run.toml" in files and files == {path.name for path in pathlib.Path("flowers").iterdir()}, files
    print(f"{wheel} and {sdist}: fluid {fluid.__version__} trains from the wheel alone")


if __name__ == "__main__":
    main(*sys.argv[1:])
