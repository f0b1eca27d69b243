"""Commands of `python -m fluid`, one module each: `add` declares the arguments, `run` runs the command."""
