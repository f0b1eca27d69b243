"""Reads of checkpoints onto eight devices; `test_eight_devices.py` runs this file in a process with eight devices."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import fluid
from fluid import layers
from fluid.checkpoint.folder import Folder


def test_row_34_sharded_arrays_are_read_onto_their_devices(tmp_path):
    arrays = {
        "table": np.arange(16 * 6, dtype="float32").reshape(16, 6),
        "none": np.zeros((0, 8), "float32"),
        "bias": np.arange(3, dtype="float32"),
    }
    folder = Folder(tmp_path)
    folder.write(4, arrays, {})
    place = NamedSharding(jax.make_mesh((8,), ("fsdp",)), PartitionSpec("fsdp"))
    found = folder.arrays(4, {"table": place, "none": place})
    assert found.keys() == arrays.keys()
    assert found["table"].sharding == place and type(found["bias"]) is np.ndarray
    for name, value in arrays.items():
        np.testing.assert_array_equal(found[name], value)


def test_restored_sharded_arrays_are_donated_without_a_copy():
    def program():
        loss = layers.mean(layers.fc(layers.data("x", shape=[8]), 1024, name="fc"))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    session = fluid.Session(program, parallel="fsdp")
    state = {name: np.asarray(value) for name, value in session.state().items()}
    expected = state["fc.w_0"] + 1
    read = jax.device_put(expected, session.state()["fc.w_0"].sharding)
    session.restore({**state, "fc.w_0": read}, own=["fc.w_0"])
    assert session.scope.arrays["fc.w_0"] is read
    session.step({"x": np.zeros((8, 8), "float32")})  # the feed is 0, so the gradient of the weight is 0
    assert read.is_deleted()
    np.testing.assert_array_equal(session.scope["fc.w_0"], expected)
