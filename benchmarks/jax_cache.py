"""Damage to JAX's own compilation cache: one flipped bit in a file, and a process killed while it writes a file.

    python benchmarks/jax_cache.py --flips 200 --kills 100

The results are the reason why fluid writes other cache files (`fluid/runtime/compilation_cache.py`). After the damage,
a compiled function computes numbers, with one of four results. "whole": the numbers are right. "stuck": the numbers are
right, but the damaged file stays, so each later process compiles again. "wrong": the numbers are wrong, without an
error. "crash": the process dies.
"""

import argparse
import collections
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import warnings

SUFFIX = "-cache"
OPTIONS = ["--zlib"] if "--zlib" in sys.argv else []


def compute() -> bytes:
    """Compute numbers by a compiled function, and return them as bytes."""
    import jax
    import jax.numpy as jnp

    def loss(w):
        return jnp.sum(jnp.tanh(jnp.linspace(-1, 1, 64 * 32).reshape(64, 32) @ w) ** 2)

    w = jnp.linspace(-1, 1, 32 * 16).reshape(32, 16)
    return jax.device_get(jax.jit(jax.value_and_grad(loss))(w)[1]).tobytes()


def cached_in(folder: str) -> None:
    """Make JAX store compiled programs in a folder."""
    if OPTIONS:
        sys.modules["zstandard"] = None  # type: ignore[assignment]
    import jax

    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def entries(folder: str) -> list[pathlib.Path]:
    """List the files of compiled programs, the largest first."""
    return sorted(pathlib.Path(folder).glob(f"*{SUFFIX}"), key=lambda file: -file.stat().st_size)


def flip(folder: str, first: int, last: int) -> None:
    """Flip a random bit of the largest cache file, compute, print the result, and restore the file.

    This is repeated for each random seed from `first` to `last - 1`.
    """
    cached_in(folder)
    import jax

    wanted = compute()
    file = entries(folder)[0]
    whole = file.read_bytes()
    for case in range(first, last):
        rng = random.Random(case)
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        print(f"{case} begun", flush=True)
        jax.clear_caches()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = compute()
        end = "wrong" if found != wanted else "stuck" if caught and file.read_bytes() == bytes(damaged) else "whole"
        print(f"{case} {end}", flush=True)
        file.write_bytes(whole)


def flips(count: int) -> collections.Counter[str]:
    """Flip one bit of a cache file in each of `count` cases; count the results. A new process follows a crash."""
    ends: collections.Counter[str] = collections.Counter()
    case = 0
    with tempfile.TemporaryDirectory() as folder:
        while case < count:
            command = [sys.executable, __file__, "--flip", folder, str(case), str(count), *OPTIONS]
            done = subprocess.run(command, capture_output=True, text=True)
            lines = [line.split() for line in done.stdout.splitlines()]
            ends.update(end for _, end in lines if end != "begun")
            if done.returncode == 0:
                break
            ends["crash"] += 1
            case = int(lines[-1][0]) + 1
            for file in entries(folder):
                file.unlink()
    return ends


def kills(count: int) -> collections.Counter[str]:
    """Kill `count` processes while they write a JAX cache; then count how the next process ends with each cache."""
    ends: collections.Counter[str] = collections.Counter()
    wanted = subprocess.run([sys.executable, __file__, "--compute", "off"], capture_output=True, check=True).stdout
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.Popen(
                [sys.executable, __file__, "--compute", folder, *OPTIONS], stdout=subprocess.DEVNULL
            )
            while child.poll() is None and not any(name.endswith(SUFFIX) for name in os.listdir(folder)):
                time.sleep(0)
            child.kill()
            child.wait()
            before = {file: file.read_bytes() for file in entries(folder)}
            again = subprocess.run([sys.executable, __file__, "--compute", folder, *OPTIONS], capture_output=True)
            said = b"UserWarning" in again.stderr
            kept = said and all(file.read_bytes() == content for file, content in before.items())
            wrong = again.stdout != wanted
            ends["crash" if again.returncode else "wrong" if wrong else "stuck" if kept else "whole"] += 1
    return ends


def main() -> None:
    """Print the results of all cases."""
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--flips", type=int, default=200)
    cli.add_argument("--kills", type=int, default=100)
    cli.add_argument("--zlib", action="store_true", help="as where the package zstandard is not installed")
    cli.add_argument("--flip", nargs=3, help=argparse.SUPPRESS)
    cli.add_argument("--compute", help=argparse.SUPPRESS)
    given = cli.parse_args()
    if given.flip:
        flip(given.flip[0], int(given.flip[1]), int(given.flip[2]))
    elif given.compute:
        if given.compute != "off":
            cached_in(given.compute)
        sys.stdout.buffer.write(compute())
    else:
        print("flipped bytes:", dict(flips(given.flips)))
        print("kills:", dict(kills(given.kills)))


if __name__ == "__main__":
    main()
