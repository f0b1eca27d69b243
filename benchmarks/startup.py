"""Time from the start of a process to its first training step or inference, with an empty and a full compilation cache.

fluid and hand-written JAX each run in two processes: the first process starts with an empty cache, and the second
process with a full cache. fluid uses its default cache; the hand-written code uses JAX's cache, with the settings that
store every program. The hand-written code draws initial values with NumPy. The clocks "wall" and "CPU" stop after the
step or the inference, and the clock "process" stops at the end of the process.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from timing import Row, interleave, table

HERE = pathlib.Path(__file__).resolve().parent
CLOCKS = ("wall", "CPU", "process")
Figures = dict[tuple[str, str, str], float]


def environment(folder: str) -> dict[str, str]:
    """Return environment variables for a process that caches compiled programs in `folder`, by fluid or by JAX."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    own.pop("PYTHONDONTWRITEBYTECODE", None)
    kept = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return own | ({} if folder.endswith("fluid") else kept) | {"FLUID_COMPILATION_CACHE": folder}


def process(script: str, *arguments: str, folder: str, source: str | None = None) -> tuple[float, str]:
    """Run a script, and return its seconds and its output; `source` is a folder with another version of fluid."""
    path = {"PYTHONPATH": source} if source else {}
    start = time.perf_counter()
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(folder) | path)
    return time.perf_counter() - start, done.stdout


def reached(*arguments: str, folder: str, source: str | None = None) -> dict[str, float]:
    """Run `first_step.py` by `process`, and return the seconds by the name of the clock.

    The clocks "wall" and "CPU" stop after the step or the inference, and the clock "process" stops at the end of the
    process. The clock "CPU, imported" starts after the imports; it includes the modules that fluid imports on first
    use.
    """
    start = time.time()
    whole, printed = process("first_step.py", *arguments, folder=folder, source=source)
    told = json.loads(printed)
    return {"wall": told["done"] - start, "CPU": told["CPU"], "CPU, imported": told["CPU, imported"], "process": whole}


def starts(peer: str, net: str) -> Figures:
    """Return the seconds until the first step and the first inference, with an empty and a full compilation cache."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as place:
        parameters = str(pathlib.Path(place) / "parameters.npz")
        for what in ("step", "answer"):
            folder = str(pathlib.Path(place) / what / peer)
            for kept in ("empty cache", "second process"):
                seconds = reached(peer, net, what, parameters, folder=folder)
                found.update({(what, kept, clock): seconds[clock] for clock in CLOCKS})
    return found


def encoder(buckets: str, source: str | None = None) -> float:
    """Measure the seconds of `ragged_encoder.py` with an empty compilation cache.

    If `source` is given, it is a folder with another version of fluid, which is measured instead.
    """
    with tempfile.TemporaryDirectory() as place:
        return process("ragged_encoder.py", buckets, folder=f"{place}/fluid", source=source)[0]


def alone(net: str, rounds: int, beside: str = "hand") -> list[Row]:
    """Measure the first training step of one net with an empty compilation cache, in fluid and in hand-written JAX.

    For the hand-written code, `beside` is "hand" or, if JAX draws the initial values, "drawn by jax".
    """

    def start(peer: str) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as place:
            return reached(
                peer, net, "step", f"{place}/parameters.npz", folder=f"{place}/fluid" if peer != "hand" else place
            )

    found = interleave({"fluid": functools.partial(start, "fluid"), "hand": functools.partial(start, beside)}, rounds)
    numbers = {clock: {peer: [each[clock] for each in all_] for peer, all_ in found.items()} for clock in CLOCKS}
    title = f"to the first step, {net}, empty cache{'' if beside == 'hand' else f', beside {beside}'}"
    return [Row(f"{title}, {clock}, by itself", "s", each, higher_is_better=False) for clock, each in numbers.items()]


def run(rounds: int) -> list[Row]:
    turns = max(1, rounds // 4)
    rows = []
    for net, title in (("digits", "the README's net"), ("lenet", "LeNet")):
        found = interleave({peer: functools.partial(starts, peer, net) for peer in ("fluid", "hand")}, turns)
        for key in found["fluid"][0]:
            numbers = {peer: [figures[key] for figures in all_figures] for peer, all_figures in found.items()}
            what, kept, clock = key
            rows.append(Row(f"to the first {what}, {title}, {kept}, {clock}", "s", numbers, higher_is_better=False))
    encoders = {"fluid": functools.partial(encoder, "default"), "hand": functools.partial(encoder, "one")}
    title = "ragged encoder, 8 epochs, default buckets / one bucket"
    rows.append(Row(title, "s", interleave(encoders, turns), higher_is_better=False))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The first step of a net with nothing compiled, by itself.")
    parser.add_argument("net", choices=["digits", "lenet"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--beside", choices=["hand", "drawn by jax"], default="hand")
    arguments = parser.parse_args()
    print(table(alone(arguments.net, arguments.rounds, arguments.beside)))
