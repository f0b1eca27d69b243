"""Commands of `python -m fluid`: each module defines one. Its function `add` declares the arguments, `run` runs it."""
