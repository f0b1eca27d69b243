"""All programs to export: from the examples and the golden cases, with parameters and data.

A golden case, a recorded result of PaddlePaddle Fluid, has feeds of fixed sizes. Here, the batch dimension of its feeds
may have any size, if the program of the case allows this.
"""

import fnmatch
import functools
import importlib.util
import pathlib
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np

import fluid

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"

# Programs that cannot be exported, and the reasons. A test checks that each export fails, so that the list stays true.
IMPOSSIBLE: dict[str, str] = {}

# Programs that are exported as one function for each size, instead of one function for all sizes, and the reasons.
NOT_OPEN = {
    "golden/sequence/reshape_wide": "the steps of a sequence must be a multiple of something",
}

# Golden cases (recorded results of PaddlePaddle Fluid) that run only with the recorded batch size, and the reasons.
# A test checks that other batch sizes fail.
FIXED = {
    "optimizer/*": "a feed is as large as the parameter that it is multiplied by",
    "decay_clip/*": "a feed is as large as the parameter that it is multiplied by",
    "schedule/*_in_*": "a feed is as large as the parameter that it is multiplied by",
    "detection/box_coder_decode": "there are as many rows of boxes as of images by chance",
    "detection/box_coder_decode_pixels_list": "there are as many rows of boxes as of images by chance",
    "detection/generate_proposals_default": "the anchors have as many rows as there are images by chance",
    "integers/*div_scalar": "a single number has as many elements as there are rows by chance",
    "matrix/matmul_transposed_alpha": "what it transposes has the batch for an inner size",
    "shape/split_sections": "it cuts the batch into parts of given sizes",
    "shape/reshape_infer": "it gives the batch another size",
    "shape/unstack_axis_0": "it has one output for each row",
    "sequence/lod_reset_offsets": "it names the rows",
    "names/expand_as_3d": "one feed has twice as many rows as the other",
}
# Golden cases that allow any batch size, although their names match a pattern in `FIXED` (cases with a fixed batch).
OPEN = ["optimizer/sparse_*"]

# Golden cases that are valid for some batch sizes only, and the reasons. Their feeds keep their recorded sizes, too.
SOME_SIZES = {
    "names/temporal_shift": "its rows are frames of videos of three",
    "names/crop_tensor": "it cuts given rows out of the batch",
}

# Examples that the tests of this folder do not export, and the reasons.
NOT_DEPLOYED = {
    "bert_classifier": "`tests/peers` compares it with its original; `docs/fine-tuning.md` exports merged adapters",
    "gpt2": "`tests/peers` compares it with its original; write_characters exports a program that generates",
    "low_rank_digits": "a plain net after merge_low_rank, as docs/fine-tuning.md exports it",
    "resnet50": "`tests/peers` compares it with its original; image_classification exports a residual net",
    "plan_gpt": "nothing is trained: it is about a training to come",
    "population_digits": "the net of recognize_digits, many times",
    "seq2seq_2018": "its programs are written down, and saved by the Executor as in 2018",
}

# Names of exported examples, and functions from the module of an example to the program to export.
EXAMPLE_PROGRAMS = {
    "fit_a_line": lambda module: module.inference_program,
    "recognize_digits.mlp": lambda module: module.mlp,
    "recognize_digits.conv": lambda module: module.conv,
    "image_classification.vgg": lambda module: functools.partial(module.vgg, 2),
    "image_classification.resnet": lambda module: functools.partial(module.resnet, 2),
    "word2vec": lambda module: module.make_programs(50)[0],
    "recommender_system": lambda module: module.make_programs(10, 20)[0],
    "understand_sentiment.conv": lambda module: module.make_programs("conv", 30)[0],
    "understand_sentiment.lstm": lambda module: module.make_programs("lstm", 30)[0],
    "understand_sentiment.rnn": lambda module: module.make_programs("rnn", 30)[0],
    "label_semantic_roles": lambda module: module.make_programs(2, 8)[1],
    "machine_translation": lambda module: module.make_programs(8)[1],
    "language_model": lambda module: module.make_programs(50, 1, 8, 12)[1],
    "write_characters": lambda module: module.make_programs(50, 8)[1],
    "ctc_digits": lambda module: module.inference_program,
    "detect_shapes": lambda module: module.inference_program,
    "serve_digits": lambda module: module.inference_program,
    "run_a_2018_model": lambda module: module.load().program,
    "online_recommender": lambda module: module.train_program,
    "gan_digits": lambda module: module.inference_program,
    "shared_tower": lambda module: module.ratings,
    "policy_gradient": lambda module: module.act,
}


@dataclass(frozen=True)
class Model:
    """A program to export.

    Attributes:
      id: the name of the program in test ids.
      function: the program function.
      arrays: values by name that replace the initial values of parameters and states.
      data: arrays by feed name, from which rows or steps are drawn; all other feeds get random numbers.
    """

    id: str
    function: Callable
    arrays: dict = field(default_factory=dict)
    data: dict = field(default_factory=dict)

    @functools.cached_property
    def program(self):
        return fluid.Program(self.function)

    @property
    def has_rows(self):
        return any(spec.shape[:1] == (None,) for spec in self.program.feeds.values())

    @property
    def has_steps(self):
        return any(spec.lod_level for spec in self.program.feeds.values())

    def params(self):
        """Return a value for each parameter and state by name.

        Random numbers replace constant initial values, because equal numbers would hide mistakes.
        """
        random = np.random.default_rng(zlib.crc32(self.id.encode()))
        made = {}
        for name, spec in (self.program.parameters | self.program.states).items():
            value = np.asarray(spec.initializer(jax.random.key(1), spec.shape, jnp.dtype(spec.dtype)))
            if value.size and value.dtype.kind == "f" and np.all(value == value.flat[0]):
                value = random.uniform(0.5, 1.5, value.shape).astype(value.dtype)
            made[name] = value
        return made | {n: v for n, v in self.arrays.items() if n in made}

    def feed(self, rows, steps):
        """Return a feed of `rows` rows as nested lists; the longest sequence has `steps` steps."""
        random = np.random.default_rng([zlib.crc32(self.id.encode()), rows, steps])
        lengths = random.integers(1, steps + 1, size=rows)
        lengths[random.integers(rows)] = steps
        return {n: self._column(spec, rows, lengths, random) for n, spec in self.program.feeds.items()}

    def _column(self, spec, rows, lengths, random):
        if spec.shape[:1] != (None,):
            known = self.data.get(spec.name)
            return (self._drawn(spec, spec.shape, random) if known is None else known).tolist()
        count = int(lengths.sum()) if spec.lod_level else rows
        values = self._drawn(spec, (count, *(3 if d is None else d for d in spec.shape[1:])), random).tolist()
        if not spec.lod_level:
            return values
        sequences = [values[end - n : end] for end, n in zip(np.cumsum(lengths), lengths, strict=True)]
        return sequences if spec.lod_level == 1 else [[sequence] for sequence in sequences]

    def _drawn(self, spec, shape, random):
        known = self.data.get(spec.name)
        if known is not None:
            rows = known.reshape(-1, *shape[1:])[random.integers(len(known), size=shape[0])]
            if rows.dtype.kind != "f" or spec.limits is not None:
                return rows
            return (rows * random.uniform(0.99, 1.0, rows.shape)).astype("float32")
        if spec.held.kind == "f":
            return random.normal(size=shape).astype("float32")
        low, high, _ = spec.limits_for(shape[0]) or (0, 2, None)
        return random.integers(low, high, size=shape)


def examples():
    """Return a Model for each program in EXAMPLE_PROGRAMS."""
    return [Model(f"examples/{name}", pick(_module(name.partition(".")[0]))) for name, pick in EXAMPLE_PROGRAMS.items()]


def golden_models():
    """Return a Model for each golden case that fluid can run."""
    return [golden(case) for case in cases_that_run()]


def cases_that_run():
    """Return the golden cases that fluid can run; `golden_cases.IMPOSSIBLE` has reasons for cases that are left out."""
    without = golden_cases.IMPOSSIBLE.keys() | {"integers/argsort_descending", "names/argsort_descending"}
    return [case for case in golden_cases.cases() if case.id not in without and not case.missing()]


def golden(case):
    """Return the Model of a golden case (a recorded result of PaddlePaddle Fluid), with its parameters and feeds."""
    feeds = case.spec["feeds"]
    known = {} if "build_only" in case.spec else case.arrays("feed")
    data = {n: v[0] if feeds[n].get("per_step") else v for n, v in known.items()}
    before = {} if "build_only" in case.spec else case.arrays("before")
    return Model(f"golden/{case.id}", case.program() if is_fixed(case) else opened(case), before, data)


def is_fixed(case):
    """Return whether the feeds of a golden case keep their recorded sizes."""
    return matches(case, FIXED | SOME_SIZES) and not matches(case, OPEN)


def matches(case, patterns):
    """Return whether the id of a golden case matches one of the patterns."""
    return any(fnmatch.fnmatchcase(case.id, pattern) for pattern in patterns)


def opened(case):
    """Return the program function of a golden case, for any batch size.

    The batch dimension is the first dimension of each feed that has as many rows as the first feed.
    """
    feeds = case.spec["feeds"].values()
    lengths = [len(f["lengths"]) for f in feeds if "lengths" in f]
    sizes = [shape[0] for f in feeds if (shape := f["shape"][1:] if f.get("per_step") else f["shape"])]
    rows = next(iter(lengths or sizes), None)

    def declare(name, feed, _):
        shape = feed["shape"][1:] if feed.get("per_step") else feed["shape"]
        if "lengths" in feed:
            return fluid.layers.data(name, shape[1:], feed["dtype"], lod_level=1)
        if shape[:1] == [rows]:
            return fluid.layers.data(name, shape[1:], feed["dtype"])
        return fluid.layers.data(name, shape, feed["dtype"], append_batch_size=False)

    return case.program(declare=declare)


@functools.cache
def _module(name):
    spec = importlib.util.spec_from_file_location(f"exported_example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
