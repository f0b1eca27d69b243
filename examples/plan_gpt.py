"""Plan the training of a GPT of 6.7 billion parameters on 256 devices, without the devices.

The training step is compiled for simulated devices, which takes a minute on a laptop. The result is a table of the
memory, the computation and the communication of a device. Run

    python examples/plan_gpt.py
    python -m fluid plan examples/plan_gpt.py:train_program --optimizer Adam --batch 256 --precision bfloat16 \
        --mesh data=256 --mesh fsdp=256 --mesh data=64,model=4 --mesh fsdp=64,model=4 --memory 80GB
"""

import functools

import jax

import fluid

MESHES = [
    fluid.Mesh(data=256),
    fluid.Mesh(fsdp=256),
    fluid.Mesh(data=64, model=4),
    fluid.Mesh(fsdp=64, model=4),
]


def gpt(count=32_000, length=2048, layers=32, size=4096, heads=32, hidden=11_008):
    """Return the loss of a GPT with a vocabulary of `count` words, for texts of `length` words.

    If the mesh has an axis `model`, the first matrices of each block are sharded by columns and the last ones by rows.
    The devices along the axis then sum their results twice per block (Shoeybi et al., 2019).
    """
    columns = fluid.ParamAttr(sharding=(None, "model"))
    rows = fluid.ParamAttr(sharding=("model", None))
    product = functools.partial(fluid.layers.dense, bias_attr=False)
    norm = fluid.layers.feature_norm

    def block(x):
        attributes = [columns, columns, columns, rows]
        x = x + fluid.layers.multi_head_attention(
            norm(x), num_heads=heads, causal=True, rotary=True, param_attr=attributes, bias_attr=False
        )
        seen = norm(x)
        gate = product(seen, size=hidden, act="swish", param_attr=columns)
        return x + product(gate * product(seen, size=hidden, param_attr=columns), size=size, param_attr=rows)

    text = fluid.layers.data("text", shape=[length + 1, 1], dtype="int64")
    x = fluid.layers.embedding(text[:, :-1], size=[count, size])
    # Recompute blocks for the gradient: the activations of 32 blocks would need more memory than everything else.
    x = fluid.layers.repeat(block, layers, x, remat=True)
    scores = product(norm(x), size=count, param_attr=columns)
    return {"loss": fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, text[:, 1:]))}


def train_program():
    """Return the loss of the full-size GPT."""
    return gpt()


def main(program=train_program, batch_size=256, meshes=MESHES, memory=80 * 10**9):
    """Plan the training of a program for each mesh of devices, print the plan as a table, and return it."""
    optimizer = fluid.optimizer.Adam(3e-4)
    plan = fluid.plan(program, optimizer, batch_size, meshes, memory=memory, precision="bfloat16")
    print(plan)
    return plan


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 256)  # JAX reads this setting when it initialises its devices
    main()
