"""Commands of `python -m fluid`: in the module of each, `add` declares the arguments, and `run` runs the command."""
