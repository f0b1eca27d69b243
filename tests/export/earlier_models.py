"""Model files that earlier versions of fluid wrote: their programs and recorded answers. `write()` wrote them once."""

import pathlib

import numpy as np
from export.test_artifact import decode_step, digits, encoder, params_of, sentiment

import fluid

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "artifact"

IMAGES = np.linspace(-1, 1, 3 * 64, dtype="float32").reshape(3, 1, 8, 8)
WORDS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]


def noisy():
    x = fluid.layers.data("x", shape=[3])
    return {"noise": fluid.layers.uniform_random_batch_size_like(x, shape=[-1, 3]), "same": x}


def by_numbers():
    """Build a program that reads sizes of its feed as numbers, so its export has a separate function for each size."""
    x = fluid.layers.data("x", shape=[2], lod_level=1)
    return fluid.layers.reduce_sum(x.data * np.linspace(0, 1, x.shape[1], dtype="float32")[None, :, None], dim=1)


# Each file name maps to a program or a dict of programs, the options of the export, and a feed for each entry point.
# The file "half" was written by a version that folded batch normalisations into the weights.
KEPT = {
    "dense": (digits, {}, {"predict": {"image": IMAGES}}),
    "half": (digits, {"precision": "bfloat16"}, {"predict": {"image": IMAGES}}),
    "sequences": (sentiment, {}, {"predict": {"words": WORDS}}),
    "random": (noisy, {}, {"predict": {"x": IMAGES[0, 0, :4, :3]}}),
    "fixed": (by_numbers, {"batch_sizes": [2], "buckets": [4]}, {"predict": {"x": [[[1, 2]], [[3, 4], [5, 6]]]}}),
    "entries": (
        {"encode": encoder, "decode_step": decode_step},
        {},
        {"encode": {"words": WORDS}, "decode_step": {"state": IMAGES[0, 0, :2, :4], "word": [[1], [2]]}},
    ),
}


def answers(name):
    """Return the answers of a model file as float32 arrays; the keys are `NAME/ENTRY/INDEX`."""
    found = {}
    seed = 0 if name == "random" else None
    for entry, feed in KEPT[name][2].items():
        results = fluid.Inferencer(param_path=FOLDER / f"{name}.fluid", entry=entry).infer(feed, seed=seed)
        for place, value in enumerate(results):
            value = value.data if isinstance(value, fluid.SequenceBatch) else value
            found[f"{name}/{entry}/{place}"] = np.asarray(value, "float32")
    return found


def write():
    """Write all model files to a folder; fail if the folder exists, because its recorded files must never change."""
    FOLDER.mkdir(parents=True)
    found = {}
    for name, (programs, options, _) in KEPT.items():
        functions = programs.values() if isinstance(programs, dict) else [programs]
        params = {n: v for function in functions for n, v in params_of(function).items()}
        fluid.io.save_inference_model(FOLDER / f"{name}.fluid", programs, params, **options)
        found |= answers(name)
    np.savez(FOLDER / "answers.npz", **found)
