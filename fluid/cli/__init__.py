"""The commands of `python -m fluid`, one module each: `add` declares its arguments, `run` does it."""
