"""Time of `import fluid`, compared with `import jax, optax`, each in a fresh process."""

import os
import subprocess
import sys

from timing import Row, interleave

CODE = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"


def seconds(modules: str) -> float:
    """Return the seconds of an import in a new interpreter, with bytecode caches, as users of a package have them."""
    command = [sys.executable, "-c", CODE.format(modules)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout)


def run(rounds: int) -> list[Row]:
    peers = {"fluid": lambda: seconds("fluid"), "hand": lambda: seconds("jax, optax")}
    return [Row("import fluid / import jax, optax", "s", interleave(peers, rounds), higher_is_better=False)]
