"""Programs for the tests of summaries and drawings."""

import jax.numpy as jnp

import fluid
from fluid import layers


def digits():
    """Build a convolutional net and its loss: the label is declared first, the net has states, outputs are a dict."""
    label = layers.data("label", shape=[1], dtype="int64")
    image = layers.data("image", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(
        image, num_filters=20, filter_size=3, pool_size=2, pool_stride=2, act="relu"
    )
    prediction = layers.fc(layers.batch_norm(hidden), size=10, act="softmax")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": layers.accuracy(prediction, label)}


def recurrent():
    """Build a recurrent block with operators inside and outside of it, and then three repeated blocks."""
    words = layers.data("words", shape=[4], lod_level=1)
    scale = layers.data("scale", shape=[8])
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(words)
        before = rnn.memory(shape=[8])
        hidden = layers.fc([word, before], size=8, act="tanh") * 2.0
        rnn.update_memory(before, hidden)
        rnn.output(hidden)
    last = layers.sequence_last_step(rnn()) * scale
    deep = layers.repeat(lambda h: h + layers.fc(h, size=8), 3, last, remat=True)
    return layers.mean(deep @ jnp.ones((8, 2)))


def residual(blocks=4):
    """Build residual blocks in a Python loop."""
    hidden = layers.data("x", shape=[8])
    for _ in range(blocks):
        within = layers.fc(layers.fc(hidden, size=8, act="relu"), size=8)
        hidden = layers.relu(within + hidden)
    return layers.fc(hidden, size=2)


def generator(noise):
    with fluid.name_scope("generator"):
        return layers.fc(noise, size=1, param_attr="g.w", bias_attr="g.b")


def realness(x):
    hidden = layers.fc(x, size=16, act="relu", param_attr="d.w1", bias_attr="d.b1")
    return layers.fc(hidden, size=1, param_attr="d.w2", bias_attr="d.b2")


def train_discriminator():
    real = layers.data("real", shape=[1])
    noise = layers.data("noise", shape=[4])
    loss = layers.mean(realness(generator(noise)) - realness(real))
    fluid.optimizer.Adam(1e-2).minimize(loss, parameter_list=["d.w1", "d.b1", "d.w2", "d.b2"])
    return loss


def train_generator():
    loss = layers.mean(-realness(generator(layers.data("noise", shape=[4]))))
    fluid.optimizer.Adam(1e-2).minimize(loss, parameter_list=["g.w", "g.b"])
    return loss
