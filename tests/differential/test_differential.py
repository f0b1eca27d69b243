"""Random programs, and laws between independent ways to the same numbers.

The first seeds are the same in each run: `make test` has 15, FLUID_TEST_ALL=1 has 60, and FLUID_SEEDS sets another
number. A seed names a program only while the tables of layers and laws stay as they are; a failure prints the program.
To repeat a seed, one of its laws, or other seeds:

    PYTHONPATH=tests python -m differential.test_differential 7
    PYTHONPATH=tests python -m differential.test_differential 7 rows --minimize
    PYTHONPATH=tests python -m differential.test_differential 5000 --count 100
"""

import argparse
import os
import pathlib
import random
import re
import tempfile
import traceback
import warnings

import jax
import pytest
from differential import training_laws  # noqa: F401 (registers its laws)
from differential.laws import LAWS
from differential.programs import Case, Draft

import fluid

SEEDS = int(os.environ.get("FLUID_SEEDS") or (60 if os.environ.get("FLUID_TEST_ALL") else 15))
IMPORTS = "import jax.numpy as jnp\n\nimport fluid\nfrom fluid import layers\n"


def drawn(seed):
    """Return the source of the program of a seed."""
    return Draft(seed).source()


def drawn_laws(seed, source, count=2):
    """Draw some of the laws that a program has."""
    draw = random.Random(f"laws {seed}")
    fitting = [name for name, law in LAWS.items() if law.weight and law.fits(source)]
    weights = {name: draw.random() ** (1 / LAWS[name].weight) for name in fitting}
    return sorted(fitting, key=weights.get)[-count:]


def failure(source, seed, name):
    """Check a law of a program; return the text of the failure, or an empty string."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            LAWS[name](Case(source, seed), random.Random(f"{name} {seed}"), pathlib.Path(folder))
        except Exception:
            return traceback.format_exc()
    return ""


def check(source, seed, name):
    """Fail with the program, its seed and the difference if a law does not hold."""
    if text := failure(source, seed, name):
        pytest.fail(shown(source, seed, name, text), pytrace=False)


def shown(source, seed, name, text):
    """Return the message of a failure: the law, the seed, the source text of the program, and the difference."""
    return f"seed {seed}, law {name}: {LAWS[name].__doc__}\n\n{IMPORTS}\n\n{source}\n{text}"


def minimized(source, seed, name):
    """Drop lines and layers of a program while the law still fails with the same kind of error."""
    kind = failure(source, seed, name).strip().splitlines()
    kind = next((line.partition(":")[0] for line in reversed(kind) if re.match(r"[\w.]+(Error|Exception)", line)), "")

    def fails(other):
        text = failure(other, seed, name)
        return f"\n{kind}" in text and "NameError" not in text

    smaller = True
    while smaller:
        smaller = next((other for other in simpler(source) if fails(other)), None)
        source = smaller or source
    return source


def simpler(source):
    """Yield programs with a line less: without the line, or with its value replaced by a value that it reads."""
    lines = source.splitlines()
    for number, line in enumerate(lines):
        match = re.match(r"    (h\d+|steps|words|ids|x|image) = (.*)", line)
        if not match:
            continue
        before, after = lines[:number], "\n".join(lines[number + 1 :])
        for value in dict.fromkeys(re.findall(r"\b(?:h\d+|x|image|steps)\b", match.group(2))):
            yield "\n".join([*before, re.sub(rf"\b{match.group(1)}\b", value, after)]) + "\n"
        without = re.sub(rf"\b{match.group(1)}, |, {match.group(1)}\b", "", after)
        if not re.search(rf"\b{match.group(1)}\b", without):
            yield "\n".join([*before, without]) + "\n"
    if '"metric_0"' in source:
        yield re.sub(r', "metric_0".*}', "}", source)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_ways_to_a_number_agree(seed):
    source = drawn(seed)
    for name in drawn_laws(seed, source):
        check(source, seed, name)
    if seed % 50 == 49:
        jax.clear_caches()  # a thousand seeds compile thousands of programs


def test_programs_have_at_most_fifteen_lines_and_many_layers():
    sources = [drawn(seed) for seed in range(1000)]
    assert max(source.count("\n") for source in sources) <= 15
    assert len(set(re.findall(r"layers\.\w+", "".join(sources)))) > 100
    assert len(set(sources)) == 1000
    assert {name for seed, source in enumerate(sources) for name in drawn_laws(seed, source)} == {
        name for name, law in LAWS.items() if law.weight
    }


def test_a_failure_prints_a_program_that_runs(monkeypatch):
    def broken(case, draw, folder):
        """One is two."""
        assert case.seed == 2

    monkeypatch.setitem(LAWS, "broken", broken)
    with pytest.raises(pytest.fail.Exception) as raised:
        check(drawn(1), 1, "broken")
    text = str(raised.value)
    assert text.startswith("seed 1, law broken: One is two.")
    names = {}
    exec(text[text.index("import") : text.index("Traceback")], names)
    assert "loss" in fluid.Program(names["program"]).output_names


def main():
    """Run seeds from the command line, and print the failures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int)
    parser.add_argument("laws", nargs="*")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--minimize", action="store_true")
    given = parser.parse_args()
    for seed in range(given.seed, given.seed + given.count):
        source = drawn(seed)
        for name in given.laws or drawn_laws(seed, source):
            if LAWS[name].fits(source) and (text := failure(source, seed, name)):
                smaller = minimized(source, seed, name) if given.minimize else source
                print(shown(smaller, seed, name, text), flush=True)


if __name__ == "__main__":
    main()
