"""Run a model that PaddlePaddle Fluid saved years ago, fine-tune it, convert it to one file, and serve the file.

The default model is a small net for images of 12 x 12 pixels, trained for five steps and saved by PaddlePaddle
1.8.5, with recorded images and results. This example needs `pip install 'fluid-jax[original,serve]'`. Run

    python examples/run_a_2018_model.py
    python examples/run_a_2018_model.py --model FOLDER   # a custom model: print its contents and convert it to one file
"""

import argparse
import os
import pathlib
import tempfile

import numpy as np

import fluid

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data" / "paddle" / "lenet"


def load(folder=FOLDER / "inference"):
    """Load a folder of PaddlePaddle's `save_inference_model`: the program, its feeds and its fetches."""
    return fluid.io.load_inference_model(folder)


def recorded():
    """Load recorded images `[8, 1, 12, 12]`, and the results `[8, 10]` that PaddlePaddle computed for them."""
    with np.load(FOLDER / "io.npz") as file:
        return file["in_img"], file["out"]


def fine_tune(model, images, labels, num_epochs):
    """Train the loaded model further, on new labels; return the loss before and after the training."""

    def train_program():
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        (probability,) = model.program()
        return fluid.layers.mean(fluid.layers.cross_entropy(probability, label))

    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(1e-2))
    reader = fluid.reader.arrays({model.feed_target_names[0]: images, "label": labels}, batch_size=len(images))
    before = float(trainer.test(reader)[0])
    trainer.train(reader, num_epochs=num_epochs)
    return before, float(trainer.test(reader)[0])


def convert(model, path):
    """Save the old model as a single file, which runs without PaddlePaddle and without the original folder."""
    program = model.program
    fluid.io.save_inference_model(path, program, program.params, model.feed_target_names, model.fetch_targets)
    print(f"{path}: {pathlib.Path(path).stat().st_size:,} bytes")


def main(num_epochs=20, path="old.fluid"):
    """Run the old model, train it further, convert it, and serve it.

    Return the largest differences to PaddlePaddle's results, and the losses before and after the further training.
    """
    model = load()
    print(
        f"{', '.join(model.feed_target_names)} -> {', '.join(model.fetch_targets)}, {len(model.program.params)} arrays"
    )
    images, wanted = recorded()
    (found,) = fluid.Inferencer(param_path=FOLDER / "inference").infer({"img": images})
    here = float(np.abs(found - wanted).max())
    print(f"largest difference to what the original answered: {here:.1e}")

    before, after = fine_tune(model, images, np.arange(len(images)) % 10, num_epochs)
    print(f"trained further on {len(images)} images: loss {before:.3f}, then {after:.3f}")

    convert(model, path)
    with fluid.serve({"old": path}, port=0, max_batch=8) as server:
        (answered,) = fluid.Inferencer(url=server.url).infer({"img": images})
    served = float(np.abs(answered - wanted).max())
    print(f"served at {server.url}; largest difference: {served:.1e}")
    return here, served, before, after


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, help="a folder of your own")
    parser.add_argument("--save", default="model.fluid", help="the file to make of it")
    given = parser.parse_args()
    if given.model is not None:
        convert(load(given.model), given.save)
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(path=os.path.join(folder, "old.fluid"))
