"""Measure the strength of the suite: apply each fault of this folder to a copy of the sources, and run the tests.

`make strength` applies all faults, and `make strength N=10` applies ten that a seed draws. A fault is a patch: its
first line says what is wrong, and its line `Found by:` names the test that is known to find it. This test runs first;
if it passes, the tests of the rooms that the patch changes run, nearest folders first, until one of them fails.

A fault that no test finds makes the command fail.
"""

import argparse
import concurrent.futures
import itertools
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
QUICK = "not full and not soak and not peers"
_MOST_SECONDS = 1800


def main() -> int:
    """Apply the drawn faults, print one line for each, and return 1 if a fault is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of file names, such as 07; all faults by default")
    parser.add_argument("-n", type=int, default=0, help="how many faults to draw; 0 takes all")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--known", action="store_true", help="run only the test that each fault names")
    arguments = parser.parse_args()
    faults = [f for f in sorted(HERE.glob("*.patch")) if f.name.startswith(tuple(arguments.names or [""]))]
    seed = os.environ.setdefault("FLUID_TEST_SEED", str(random.randrange(1 << 16)))
    if arguments.n:
        faults = sorted(random.Random(seed).sample(faults, min(arguments.n, len(faults))))
    print(f"{len(faults)} faults, FLUID_TEST_SEED={seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fluid-strength-") as folder:
        copies = [copied(pathlib.Path(folder) / str(i)) for i in range(arguments.workers)]
        with concurrent.futures.ThreadPoolExecutor(arguments.workers) as pool:
            found = sum(pool.map(lambda fault: report(fault, copies, arguments.known), faults))
    print(f"{found} of {len(faults)} faults found")
    return int(found < len(faults))


def copied(folder: pathlib.Path) -> pathlib.Path:
    """Copy the files that git knows to a new folder, and return the folder."""
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    for name in filter(None, names):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def report(fault: pathlib.Path, copies: list[pathlib.Path], only_known: bool) -> bool:
    """Apply a fault to a free copy, run tests until one fails, print the result, and restore the copy."""
    copy = copies.pop()
    begin = time.perf_counter()
    try:
        subprocess.run(["git", "apply", fault], cwd=copy, check=True)
        found = finding_test(copy, fault, only_known)
    finally:
        for name in changed(fault):
            shutil.copy2(ROOT / name, copy / name)
        copies.append(copy)
    text = fault.read_text(encoding="utf-8").partition("\n")[0]
    print(f"{fault.stem}: {found or 'NOT FOUND'} ({time.perf_counter() - begin:.0f} s) - {text}", flush=True)
    return found is not None


def changed(fault: pathlib.Path) -> list[str]:
    """Return the paths of the files that a patch changes."""
    return re.findall(r"^\+\+\+ b/(\S+)", fault.read_text(encoding="utf-8"), re.MULTILINE)


def finding_test(copy: pathlib.Path, fault: pathlib.Path, only_known: bool) -> str | None:
    """Return the first failing test for a fault in a copy; None if all tests pass that the fault reaches."""
    known = re.search(r"^Found by: (\S+::\S+)", fault.read_text(encoding="utf-8"), re.MULTILINE)
    wider = [] if only_known else itertools.chain.from_iterable(reached(copy, name) for name in changed(fault))
    for tests in itertools.chain([[known[1]]] if known else [], wider):
        failed = first_failure(copy, tests)
        if failed is not None:
            return failed
    return None


def reached(copy: pathlib.Path, changed_file: str) -> Iterator[list[str]]:
    """Yield lists of tests for a changed file: the folder that mirrors its own, the folders above, the whole suite."""
    seen: set[pathlib.Path] = set()
    for room in pathlib.Path(changed_file).relative_to("fluid").parents:
        folder = copy / "tests" / room
        files = {*folder.rglob("test_*.py")} - seen
        seen |= files
        if files:
            yield [str(file.relative_to(copy)) for file in sorted(files, key=lambda file: (len(file.parts), file))]


def first_failure(copy: pathlib.Path, tests: list[str]) -> str | None:
    """Run tests until the first failure, and return the name of the failed test; None if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", QUICK, *tests]
    environment = {
        "PYTHONPATH": str(copy),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "FLUID_TEST_CACHE": os.environ.get("FLUID_TEST_CACHE", str(ROOT / ".compiled")),
    }
    try:
        done = subprocess.run(
            command, cwd=copy, env=os.environ | environment, capture_output=True, text=True, timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"{tests[0]} (did not end)"
    if done.returncode in (0, 5):  # 5: all tests of these files have other marks
        return None
    if done.returncode not in (1, 2):  # 1: a test failed; 2: a file could not be collected
        output = done.stdout[-2000:] + done.stderr[-2000:]
        sys.exit(f"pytest {' '.join(tests[:3])}: exit status {done.returncode}\n{output}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"exit status {done.returncode} of {' '.join(tests[:3])}"


if __name__ == "__main__":
    sys.exit(main())
