"""Comparisons of fluid with other libraries, which `make peers` installs (the extra `peers`) before it runs them."""

import importlib.util

# The test modules of this folder import PyTorch and other libraries, so pytest skips the modules without PyTorch.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
