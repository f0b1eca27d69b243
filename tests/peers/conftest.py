"""Comparisons of fluid with other libraries, which `make peers` installs (the extra `peers`) before it runs them."""

import importlib.util

# The test modules of this folder import these libraries, so pytest must not import the modules in other environments.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
