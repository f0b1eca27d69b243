"""Tests of this folder compare fluid with libraries of the extra `peers`; `make peers` runs them."""

import importlib.util
import pathlib

import pytest

# Other environments have none of these libraries, which the modules of this folder import at once.
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Mark every test of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.peers)
