"""Models in Keras 3 on JAX: the compared nets, their training by `fit`, and inference."""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
from keras import layers, ops

Train = Callable[[int], list[float]]
Answer = Callable[[np.ndarray], np.ndarray]


def mlp() -> keras.Model:
    """Return a perceptron 64-200-200-10."""
    hidden = [layers.Dense(200, activation="relu") for _ in range(2)]
    return keras.Sequential([layers.Input((64,)), *hidden, layers.Dense(10)])


def lenet() -> keras.Model:
    """Return LeNet for 28 x 28 x 1, with batch normalisation after each convolution."""
    parts: list[Any] = [layers.Input((28, 28, 1))]
    for filters in (20, 50):
        parts += [layers.Conv2D(filters, 5), layers.BatchNormalization(momentum=0.9), layers.ReLU()]
        parts += [layers.MaxPooling2D(2)]
    return keras.Sequential([*parts, layers.Flatten(), layers.Dense(500, activation="relu"), layers.Dense(10)])


def resnet(blocks: list[tuple[int, int]]) -> keras.Model:
    """Return a ResNet for 32 x 32 images; `blocks` has (filters, stride) of each residual block."""

    def conv_bn(x: Any, filters: int, size: int, stride: int) -> Any:
        x = layers.Conv2D(filters, size, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9)(x)

    images = layers.Input((32, 32, 3))
    x = layers.ReLU()(conv_bn(images, 16, 3, 1))
    for filters, stride in blocks:
        shortcut = conv_bn(x, filters, 1, stride) if stride == 2 else x
        hidden = layers.ReLU()(conv_bn(x, filters, 3, stride))
        x = layers.ReLU()(conv_bn(hidden, filters, 3, 1) + shortcut)
    return keras.Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def lstm(vocabulary: int, width: int, longest: int) -> keras.Model:
    """Return a classifier: an embedding, an LSTM, the maximum over the words of a sentence, and two classes."""
    words, lengths = layers.Input((longest,), dtype="int32"), layers.Input((), dtype="int32")
    hidden = layers.LSTM(width, return_sequences=True)(layers.Embedding(vocabulary, width)(words))
    there = ops.less(ops.arange(longest), ops.expand_dims(lengths, 1))
    pooled = ops.max(ops.where(ops.expand_dims(there, 2), hidden, -np.inf), axis=1)
    return keras.Model([words, lengths], layers.Dense(2)(pooled))


def trained(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    inputs: tuple[np.ndarray, ...],
    labels: np.ndarray,
    batch: int,
    read_every: int,
) -> Train:
    """Return a function that trains for n epochs, and returns the loss of every `read_every`-th step of an epoch."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=True)
    losses: list[float] = []
    fed = list(inputs) if len(inputs) > 1 else inputs[0]

    class Read(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch % read_every == read_every - 1:
                losses.append(float(logs["loss"]))

    def train(epochs: int) -> list[float]:
        losses.clear()
        model.fit(fed, labels, batch_size=batch, epochs=epochs, shuffle=True, verbose=0, callbacks=[Read()])
        return list(losses)

    return train


def answering(model: keras.Model) -> Answer:
    """Return a function that infers probabilities `[batch, classes]` from images `[batch, height, width, channel]`."""
    learnt, states = ([v.value for v in some] for some in (model.trainable_variables, model.non_trainable_variables))

    @jax.jit
    def predict(learnt: Any, states: Any, x: Any) -> Any:
        logits, _ = model.stateless_call(learnt, states, x, training=False)
        return jax.nn.softmax(logits)

    return lambda x: np.asarray(predict(learnt, states, x))


def size_of(model: keras.Model) -> int:
    """Return the number of trainable parameters of the model."""
    return sum(variable.value.size for variable in model.trainable_variables)
