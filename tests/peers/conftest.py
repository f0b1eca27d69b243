"""Comparisons of fluid with libraries of the extra `peers`; `make peers` runs them."""

import importlib.util

# Other environments lack these libraries, which the modules of this folder import at once.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
