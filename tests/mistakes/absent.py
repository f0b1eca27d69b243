"""Mistakes with feeds and outputs that only the loss needs: labels are absent in inference and in exported models."""

from fluid import errors
from mistakes.common import SGD, X, classification, fluid, layers
from mistakes.theme import Logged, Theme

THEME = Theme("What is not needed")


@THEME.mistake("A gradient without the label", errors.FeedError, "'label'", "nobody gave", "feed={'label'")
def gradient_without_label():
    trainer = fluid.Trainer(classification, SGD)
    trainer.run({"x": X}, fetch="fc_0.w_0@GRAD")


@THEME.mistake("The label enters the net", errors.FeedError, "'label'", "nobody gave", "int64")
def label_in_the_net():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        both = layers.concat([layers.data("x", shape=[4]), layers.one_hot(label, 3)], axis=1)
        guess = layers.fc(both, size=3, act="softmax", name="guess")
        return layers.mean(layers.cross_entropy(guess, label))

    trainer = fluid.Trainer(train_program, SGD)
    trainer.run({"x": X}, fetch="guess")


@THEME.mistake("An order of feeds without one that is needed", errors.ArgumentError, "'x'", "feed_order=['x']")
def order_without_input():
    trainer = fluid.Trainer(classification, SGD)
    list(trainer.predict([[(0,)]], fetch="fc_0", feed_order=["label"]))


@THEME.mistake("Nobody says what to export", Logged, "exported: 'fc_0', computed from 'x', without 'label'", "fetch=[")
def export_of_anything():
    trainer = fluid.Trainer(classification, SGD)
    trainer.save_inference_model("model.fluid", platforms=["cpu"])


@THEME.mistake("Every output needs the label", errors.ArgumentError, "'y'", "fetch=['mixed']", "fetch=['hidden']")
def nothing_to_export():
    def train_program():
        y = layers.data("y", shape=[2])
        hidden = layers.fc(layers.data("x", shape=[4]), size=2, name="hidden")
        mixed = layers.elementwise_add(hidden, y)
        return {"loss": layers.mean(layers.square(layers.fc(mixed, size=2) - y)), "mixed": mixed}

    trainer = fluid.Trainer(train_program, SGD)
    trainer.save_inference_model("model.fluid")


@THEME.mistake("`infer_func` has a layer of its own", errors.ParameterError, "'head.w_0'", "nothing would train it")
def infer_func_with_another_layer():
    def inference_program():
        return layers.fc(layers.data("x", shape=[4]), size=3, name="head")

    fluid.Trainer(classification, SGD, infer_func=inference_program)
