"""Fixtures for the tests of a server: exported models, and a server that serves all of them."""

import pytest
from serving.running_server import any_size, centered, digits, nested, save, sentiment

import fluid

PROGRAMS = {"digits": digits, "sentiment": sentiment, "nested": nested, "centered": centered, "any_size": any_size}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Export all models, and return the paths of the files by model name."""
    folder = tmp_path_factory.mktemp("models")
    return {name: save(folder / f"{name}.fluid", program) for name, program in PROGRAMS.items()}


@pytest.fixture(scope="module")
def server(files):
    with fluid.serve(files, port=0, max_batch=8, buckets=(4, 16), max_shapes=2, read_timeout=1.0) as running:
        yield running
