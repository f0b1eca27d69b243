"""Random programs as source text: a seed draws a program of at most fifteen lines, its data and its arrays."""

import linecache
import random
import re
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from differential.templates import FIRST, HELPERS, INPUTS, LAYERS, LOSSES, METRICS, STEP_LOSSES, WORDS

import fluid

LINES = 15
ROWS = 23  # enough for several minibatches with a short last one
CLASSES, IDS, TIME = 3, 10, 5


class Draft:
    """A program function while it is drawn.

    Attributes:
      lines: the lines of the function so far.
      values: (name, kind, size) of each value so far.
      used: the names of values that other lines read.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines, self.values, self.used = [], [], set()
        self.w, self.t, self.shared = 0, self.random.choice([2, 3, 5]), None

    def source(self):
        """Draw a program and return its source."""
        draw = self.random
        by_step = draw.random() < 0.2
        names = ["steps", "words"] if by_step else ["x", "ids", "image", "steps", "words"]
        names = draw.sample(names, draw.choice([1, 1, 2] if by_step else [1, 1, 2, 2, 3]))
        target, guess, loss = draw.choice(STEP_LOSSES if by_step else LOSSES)
        self.lines += [f"{name} = {INPUTS[name]}" for name in (*names, target)]
        for name in names:
            kind, size, template = draw.choice(FIRST[name])
            self.add(kind, size, self.filled(template, ()), None if template == name else f"h{len(self.values)}")
        while self.length() < LINES and draw.random() < 0.85:
            self.layer(by_step)
        ends = [v for v in self.values if v[0] not in self.used]
        if not by_step:
            ends = [v if v[1] == "dense" else self.dense(v) for v in ends]
        elif any(v[1] != ends[-1][1] for v in ends):
            ends = ends[-1:]
        names = [v[0] for v in ends]
        merged = names[0] if len(names) == 1 else f"[{', '.join(names)}]"
        self.lines += [f"guess = {guess.format(x=merged)}", f"loss = {loss}"]
        measured = {"loss": "loss", "guess": "guess"}
        choices = [text for text in METRICS if "accuracy" not in text or "3" in guess]
        for number, text in enumerate(draw.sample(choices, 2)):
            measured[f"metric_{number}"] = text.format(target=target)
        returned = ", ".join(f'"{name}": {text}' for name, text in measured.items())
        body = [*self.lines, f"return {{{returned}}}"]
        lines = [*self.helpers(), "def program():", *(f"    {line}" for line in body)]
        return "\n".join(lines) + "\n"

    def layer(self, by_step):
        """Draw a layer and add its line."""
        draw = self.random
        free = [v for v in self.values if v[0] not in self.used]
        x = draw.choice(free if draw.random() < 0.8 else self.values)
        rows = [
            (kind, size, template)
            for (first, kind, size), templates in LAYERS.items()
            for template in templates
            if first == x[1] and not (by_step and kind != "steps")
        ]
        kind, size, template = draw.choice(rows)
        if size == "mixed":
            if draw.random() > 0.3:
                return
            size = "d"
        if "block(" in template:
            if self.shared not in (None, x[1:]):
                return
            self.shared = x[1:]
        line = self.filled(template, x)
        if self.length(line) <= LINES:  # the layer may call a function that has lines too
            self.add(kind, size, line, f"h{len(self.values)}", x)

    def add(self, kind, size, text, name, x=("", "", ())):
        """Add a line `name = text`, and the value; without a name, the text is the name of an input."""
        names = dict(zip(("d",) if len(x[2]) < 2 else ("c", "h"), x[2], strict=False), w=self.w, t=self.t)
        size = eval(f"({size},)", {}, names)
        if name is None:
            name = text
        else:
            self.lines.append(f"{name} = {text}")
            self.used |= set(re.findall(r"\b(?:h\d+|x|image|steps)\b", text))
        self.values.append((name, kind, size))

    def filled(self, template, x):
        """Return a template with drawn words, sizes and values."""
        self.w = self.random.choice([2, 3, 4, 4, 5])

        def word(match):
            name = match.group(1)
            if name in WORDS:
                return self.random.choice(WORDS[name])
            if name in ("w", "t"):
                return str(getattr(self, name))
            if name in ("d", "c", "h"):
                return str(x[2][name == "h"])
            alike = [v for v in self.values if v[1] == x[1] and (name == "z" or v[2] == x[2])]
            return (x if name == "x" else self.random.choice(alike))[0]

        return re.sub(r"\{(\w+)\}", word, template)

    def dense(self, value):
        """Return a dense value that is computed from a value of another kind."""
        templates = [t for (first, kind, _), ts in LAYERS.items() if (first, kind) == (value[1], "dense") for t in ts]
        return self.filled(self.random.choice(templates), value), "dense", ()

    def helpers(self, *more):
        """Return the lines of the functions that the lines of the program, and `more` lines, call."""
        text = "\n".join([*self.lines, *more])
        return [line for call, lines in HELPERS.items() if re.search(rf"\b{re.escape(call)}", text) for line in lines]

    def length(self, *more):
        """Return the number of lines of the program, with `more` lines, the definition, guess, loss and results."""
        return len(self.lines) + len(more) + len(self.helpers(*more)) + 4


class Case:
    """A drawn program with its data and its arrays.

    Attributes:
      seed: the seed of the data and of the arrays.
      source: the source of the program.
      program: the function that returns the loss, the guess and the metrics.
      net: the function that returns the guess only, without losses and labels.
      arrays: parameters and states by name, none of them zero.
      feed: the feeds by name, of `ROWS` rows.
    """

    def __init__(self, source, seed, dtype="float32"):
        self.seed, self.source = seed, source
        if dtype != "float32":
            source = source.replace("float32", dtype).replace(
                "param_attr='table'", f"param_attr='table', dtype='{dtype}'"
            )
            source = re.sub(r'(layers.data\("\w+", \[[\d, ]+\])(, lod_level=1)?\)', rf'\1, "{dtype}"\2)', source)
        self.program = executed(source, "program")
        self.net = executed(without_loss(source), "program")
        self.traced = fluid.Program(self.program)
        random = np.random.default_rng(seed)
        initial = self.traced.init(jax.random.key(seed))
        self.arrays = {name: moved(np.asarray(array), random) for name, array in initial.items()}
        self.feed = cut(self._data(random, dtype), np.arange(ROWS))
        self._applied = jax.jit(self._apply, static_argnames=("mode",))

    def has(self, *words):
        """Return whether the source has one of these words."""
        return any(word in self.source for word in words)

    def apply(self, feed, mode="test", arrays=None):
        """Return the outputs by name, from `Program.apply` alone."""
        return self._applied(self.arrays if arrays is None else arrays, feed, mode=mode)[0]

    def gradients(self, feed, mode="train"):
        """Return the gradients of the loss with respect to the parameters, by name, from `Program.apply` alone."""
        parameters = {name: self.arrays[name] for name in self.traced.parameters}
        loss = lambda moving: self._apply(self.arrays | moving, feed, mode=mode)[0]["loss"]  # noqa: E731
        return jax.jit(jax.grad(loss))(parameters)

    def minibatches(self, size, steps=None):
        """Return the data as a list of minibatches, the last perhaps shorter."""
        starts = range(0, ROWS, size)
        return [cut(self.feed, np.arange(i, min(i + size, ROWS))) for i in starts][:steps]

    def _apply(self, arrays, feed, mode):
        applied = self.traced.apply(arrays, feed, key=jax.random.key(5), mode=mode)
        return dict(zip(self.traced.output_names, applied.outputs, strict=True)), applied.states

    def _data(self, random, dtype):
        lengths = random.integers(random.integers(2), TIME + 1, ROWS).astype("int32")

        def real(*shape):
            return random.normal(size=(ROWS, *shape)).astype(dtype)

        def sequence(data):
            valid = np.arange(TIME)[None, :, None] < lengths[:, None, None]
            return fluid.SequenceBatch(np.where(valid, data, 0).astype(data.dtype), lengths)

        data = {"x": real(4), "y": real(1), "image": real(2, 6, 6), "steps": sequence(real(TIME, 3))}
        data["label"], data["ids"] = (random.integers(0, high, (ROWS, 1)) for high in (CLASSES, IDS))
        data["tags"], data["words"] = (sequence(random.integers(0, high, (ROWS, TIME, 1))) for high in (CLASSES, IDS))
        return {name: data[name] for name in self.traced.feeds}


def moved(array, random):
    """Return an array with noise, so that no bias is 0; a statistic that may not be negative stays positive."""
    if array.dtype.kind != "f":
        return array
    noise = 0.2 * random.normal(size=array.shape)
    return (array + (np.abs(noise) if np.all(array >= 1) else noise)).astype(array.dtype)


def cut(feed, rows):
    """Return these rows of all feeds."""
    return {name: jax.tree.map(lambda array: array[rows], value) for name, value in feed.items()}


def without_loss(source):
    """Return the source of the net alone: without the loss, the metrics, and the feeds that only the loss reads."""
    skipped = re.compile(r"    (loss|y|label|tags) = ")
    lines = [line for line in source.splitlines() if not skipped.match(line)]
    return "\n".join([*lines[:-1], '    return {"guess": guess}']) + "\n"


def executed(source, name, modules=None):
    """Run the source of a program, and return its function of this name; tracebacks show the source."""
    path = f"/drawn/{zlib.crc32(source.encode())}.py"
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    names = {"fluid": fluid, "layers": fluid.layers, "jnp": jnp, **(modules or {})}
    exec(compile(source, path, "exec"), names)
    return names[name]
