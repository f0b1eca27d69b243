"""The example recognize_digits in one or several processes: the script trains, and writes `FOLDER/end.params`."""

import functools
import pathlib
import sys

import fluid

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples"))

import recognize_digits  # noqa: E402


def main(folder):
    train, _ = recognize_digits.load_data()
    reader = fluid.reader.arrays(train, batch_size=64, shuffle=True, seed=0)
    program = functools.partial(recognize_digits.train_program, recognize_digits.mlp)
    trainer = fluid.Trainer(program, fluid.optimizer.Adam(2e-3), parallel=True)
    trainer.train(reader, num_epochs=2, progress=False)
    trainer.save_params(pathlib.Path(folder) / "end.params")


if __name__ == "__main__":
    main(*sys.argv[1:])
