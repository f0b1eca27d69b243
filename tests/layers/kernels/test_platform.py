"""Fast implementations of layers for CPUs only: models that are exported for other devices too do not contain them."""

import zipfile

import jax
import numpy as np
import pytest

import fluid
from fluid.layers.kernels.data_format import on_cpu, traced_for

FEED = {
    "image": np.random.default_rng(0).normal(size=(1, 2, 8, 8)).astype("float32"),
    "boxes": [[[0.0, 0, 5, 5], [2.0, 2, 7, 7]]],
}


def program():
    image = fluid.layers.data("image", shape=[2, 8, 8])
    boxes = fluid.layers.data("boxes", shape=[4], lod_level=1)
    return fluid.layers.roi_pool(image, boxes, pooled_height=2, pooled_width=2)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the forms are those of a CPU")
def test_pixel_loops_are_exported_only_for_cpu(tmp_path):
    (want,) = fluid.Inferencer(program, params={}).infer(FEED)
    loops = []
    for platforms in (["cpu"], ["cpu", "cuda"]):
        fluid.io.save_inference_model(tmp_path / "m", program, {}, platforms=platforms)
        (found,) = fluid.Inferencer(param_path=tmp_path / "m").infer(FEED)
        np.testing.assert_array_equal(found.data, want.data)
        blob = zipfile.ZipFile(tmp_path / "m").read("functions/0.jax_export")
        loops.append(jax.export.deserialize(bytearray(blob)).mlir_module().count("stablehlo.while"))
        with traced_for(platforms):
            assert on_cpu() and on_cpu(alone=True) == (platforms == ["cpu"])
    assert loops[0] > loops[1]
