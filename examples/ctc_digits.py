"""Transcribe handwritten numbers: a recurrent net learns from strips of digits and their transcriptions.

The strips are generated from digits of scikit-learn, some of which overlap or have gaps. The data do not mark the start
of a digit; the CTC loss finds the alignment. Test strips use digits that are not in the training strips. Run

    python examples/ctc_digits.py
"""

import argparse
import os
import tempfile

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fluid

BLANK = 10


def load_images():
    """Read images `[n, 8, 8]` between 0 and 1 and labels; one fifth of the images is kept for tests."""
    data = load_digits()
    images = (data.images / 16).astype("float32")
    split = train_test_split(images, data.target, test_size=0.2, random_state=0, stratify=data.target)
    return (split[0], split[2]), (split[1], split[3])


def make_strips(images, labels, count, seed):
    """Generate rows `(columns [width, 8], digits [n, 1])`: five to eight digits with gaps of up to four columns."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        chosen = random.integers(0, len(images), random.integers(5, 9))
        starts = np.cumsum([random.integers(0, 4), *random.integers(7, 13, len(chosen) - 1)])
        strip = np.zeros((starts[-1] + 8 + random.integers(0, 4), 8), "float32")
        for start, i in zip(starts, chosen, strict=True):
            place = strip[start : start + 8]
            np.maximum(place, images[i].T, out=place)
        rows.append((strip, labels[chosen, None].astype("int64")))
    return rows


def scores():
    """Return the logits of ten digits and the CTC blank for each pixel column of an image strip."""
    hidden = fluid.layers.data(name="strip", shape=[8], lod_level=1)
    for _ in range(2):
        hidden = fluid.layers.sequence_conv(hidden, num_filters=64, filter_size=5, act="relu")
    both = [
        fluid.layers.dynamic_gru(fluid.layers.fc(hidden, size=3 * 48), size=48, is_reverse=is_reverse)
        for is_reverse in (False, True)
    ]
    return fluid.layers.fc(both, size=BLANK + 1)


def train_program():
    """Return the loss; the metric in `main` reads the edit distances by their name, "mistakes"."""
    logits = scores()
    digits = fluid.layers.data(name="digits", shape=[1], dtype="int64", lod_level=1)
    loss = fluid.layers.mean(fluid.layers.warpctc(logits, digits, blank=BLANK, norm_by_times=True))
    guess = fluid.layers.ctc_greedy_decoder(logits, blank=BLANK)
    fluid.layers.edit_distance(guess, digits, name="mistakes")
    return loss


def inference_program():
    """Return the digits that the net recognizes in each strip (an image of several digits in a row)."""
    return fluid.layers.ctc_greedy_decoder(scores(), blank=BLANK)


def show(strip, guess, truth, shades=" .:-=+*#%@"):
    """Print a strip as characters, the digits that the net read, and the true digits."""
    for line in strip.T:
        print("    " + "".join(shades[int(v * 9)] for v in line).rstrip())
    said, true = ("".join(map(str, np.ravel(digits))) for digits in (guess, truth))
    print(f"    read as {said}, which is {'right' if said == true else 'WRONG: ' + true}\n")


def main(num_epochs=8, strips=2500, path="strips.params"):
    """Train, test, save, load and transcribe; return the share of wrong digits (1 if the net reads no digit)."""
    known, unknown = load_images()
    train, test = make_strips(*known, strips, seed=0), make_strips(*unknown, 500, seed=1)
    print(f"{len(train)} generated strips to learn from, {len(test)} to test")
    reader = fluid.reader.bucket_by_length(fluid.reader.shuffle(train, buf_size=len(train)), batch_size=32)
    clip = fluid.clip.GradientClipByGlobalNorm(1.0)
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(4e-3, grad_clip=clip))
    read = fluid.metrics.EditDistance().of(distances="mistakes.tmp_0", seq_num="mistakes.tmp_1")

    def test_now():
        return trainer.test(fluid.reader.batch(test, batch_size=100), metrics={"read": read})["read"]

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            digits, strips = test_now()
            print(f"epoch {event.epoch + 1:2}: of the test {digits:.1%} of digits are wrong, {strips:.0%} of strips")

    trainer.train(reader, num_epochs=num_epochs, event_handler=on_event)
    wrong, _ = test_now()
    trainer.save_params(path)

    (guesses,) = fluid.Inferencer(inference_program, param_path=path).infer({"strip": [strip for strip, _ in test[:5]]})
    print(f"\nparameters saved to {path}, loaded again; some strips of the test part:\n")
    for (strip, truth), guess in zip(test[:5], guesses.rows(), strict=True):
        show(strip, guess, truth)
    print(f"{wrong:.1%} of the digits of the test strips are wrong")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--strips", type=int, default=2500)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(arguments.epochs, arguments.strips, arguments.save or os.path.join(folder, "strips.params"))
