"""Saving of exported models: write programs and parameters, or a training step with all its arrays, to one file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.checkpoint import RENAME_THEM, PathLike, Rename, choose, source_of
from fluid.core import TRAIN, FeedSpec, Program, creation_paths, creation_sites
from fluid.export import archive, standalone
from fluid.export.inference_function import InferenceFunction, key_data
from fluid.export.load import platform_of
from fluid.export.signature import Entry, Output, leaves_of, level_of, value_of
from fluid.export.stablehlo import (
    BATCH_SIZES,
    PLATFORMS,
    STEPS,
    Exported,
    ExportedFunction,
    checked_sizes,
    export,
    forms,
    settings,
    sized_forms,
)
from fluid.runtime import Request, Session
from fluid.runtime.fetch import Fetch
from fluid.runtime.finite import became_non_finite, warn_of_non_finite
from fluid.runtime.parameter_updates import PREFIX
from fluid.runtime.state_io import slot_name
from fluid.runtime.step import Constants, Step, TrainingState

ProgramFunction = Callable[[], Any] | Program
ENTRY = "predict"
_KEY_FILE = "key.npy"
_KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def save(
    path: PathLike,
    program_func: ProgramFunction | Mapping[str, ProgramFunction],
    params: Mapping[str, Any] | PathLike,
    feed: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    fetch: Fetch | Mapping[str, Fetch] | None = None,
    *,
    platforms: Sequence[str] = PLATFORMS,
    precision: str | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    buckets: Any = STEPS,
    rename: Rename = None,
) -> None:
    """Export programs with their parameters to one file; for the arguments see `fluid.io.save_inference_model`."""
    several = isinstance(program_func, Mapping)
    programs = program_func if isinstance(program_func, Mapping) else {ENTRY: program_func}
    platforms, batch_sizes = checked_platforms(platforms), checked_sizes("batch_sizes", batch_sizes)
    functions = {
        name: InferenceFunction(program_of(program, precision), _of(feed, name, several), _of(fetch, name, several))
        for name, program in programs.items()
    }
    arrays = chosen_arrays(functions, params, rename)
    if names := sorted({n for function in functions.values() for n in became_non_finite(function.arrays, arrays)}):
        warn_of_non_finite("save_inference_model", names)
    if precision in ("bfloat16", "float16"):
        arrays = _rounded(functions, arrays, precision)
    exported = {
        name: export(function, arrays, platforms, forms(function.feeds, batch_sizes, buckets))
        for name, function in functions.items()
    }
    write_model(path, standalone.FORMAT, functions, exported, arrays, platforms)


def chosen_arrays(
    functions: Mapping[str, InferenceFunction], params: Mapping[str, Any] | PathLike, rename: Rename
) -> dict[str, np.ndarray]:
    """Select from `params` the arrays that exported functions read, by their names in the program."""
    found = source_of(params).renamed(rename)
    arrays: dict[str, np.ndarray] = {}
    for function in functions.values():
        found.check_table(None if function.table is None else function.table.to_json())
        wanted = {n: (spec.shape, spec.dtype) for n, spec in function.arrays.items()}
        sites, paths = creation_sites(function.arrays), creation_paths(function.arrays)
        report = choose(found, wanted, sites=sites, paths=paths, allow_extra=True, advice=RENAME_THEM)
        arrays |= {n: found.arrays[n] for n in report.taken}
    return arrays


def _rounded(
    functions: Mapping[str, InferenceFunction], arrays: Mapping[str, np.ndarray], precision: str
) -> dict[str, np.ndarray]:
    """Round float32 parameters to `precision`: a program that computes in this dtype rounds them anyway.

    States stay float32, because layers read them without rounding. Parameters among the results stay float32 too.
    """
    whole = {n for function in functions.values() for n in function.states}
    whole |= {str(output.name) for function in functions.values() for output in function.outputs}
    halves = {n for n, array in arrays.items() if array.dtype == np.float32} - whole
    return {n: array.astype(jax.numpy.dtype(precision)) if n in halves else array for n, array in arrays.items()}


def write_model(
    path: PathLike,
    kind: str,
    functions: Mapping[str, ExportedFunction],
    exported: Mapping[str, Exported],
    arrays: Mapping[str, np.ndarray],
    platforms: Sequence[str],
) -> None:
    """Write exported functions and their arrays to one file.

    Args:
      kind: the name of the file format: `standalone.FORMAT` for an inference model, or `standalone.STEP` for a training
        step.
    """
    blobs: dict[str, bytes] = {}
    entries = {name: _entry(function, exported[name], blobs).to_json() for name, function in functions.items()}
    files = {name: f"arrays/{i}.npy" for i, name in enumerate(arrays)}
    states = {n for function in functions.values() for n in function.states}
    key = np.asarray(key_data()) if any(function.random for function in functions.values()) else None
    manifest = {
        "format": kind,
        "version": standalone.VERSION,
        "made_with": {"jax": jax.__version__},
        "settings": settings(),
        "platforms": list(platforms),
        "entries": entries,
        "arrays": {n: {**_described(array, files[n]), "state": n in states} for n, array in arrays.items()},
        "key": None if key is None else _described(key, _KEY_FILE),
    }

    def contents() -> Iterator[tuple[str, bytes]]:
        yield from blobs.items()
        if key is not None:
            yield _KEY_FILE, archive.array_bytes("key", key)
        yield from ((files[n], archive.array_bytes(n, array)) for n, array in arrays.items())

    archive.write(path, manifest, contents())


def _entry(function: ExportedFunction, exported: Exported, blobs: dict[str, bytes]) -> Entry:
    """Return the signature of an entry point for the manifest, and add its serialized functions to the dict `blobs`."""
    functions = []
    for made, blob in exported.functions:
        file = f"functions/{len(blobs)}.jax_export"
        blobs[file] = blob
        functions.append(replace(made, file=file))
    return Entry(
        exported.feeds,
        function.outputs,
        tuple(function.arrays),
        tuple(functions),
        function.random,
        exported.least,
        exported.note,
        function.table,
        function.by_row,
    )


def _described(array: np.ndarray, file: str) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype), "file": file}


def program_of(function: ProgramFunction, precision: str | None = None) -> Program:
    """Return the Program to export, from a program function or a Program, in the given precision.

    Raises:
      ArgumentError: the program comes from an exported model.
    """
    if not isinstance(function, Program):
        return Program(function, precision=precision)
    if function.exported:
        raise errors.ArgumentError(
            f"the program {function.name} was exported already; copy its file, or export the function that it came from"
        )
    if precision in (None, function.precision):
        return function
    function.check_unchanged()
    return Program(function.traced_function, precision=precision)


def _of(names: Any, entry: str, several: bool) -> Any:
    """Return the names in the argument `feed` or `fetch` that belong to one entry point (program)."""
    if names is None or not several:
        return names
    if not isinstance(names, Mapping):
        raise errors.ArgumentTypeError(
            f"with several entry points, feed= and fetch= are dicts by entry point, found {names!r}: "
            f"fetch={{{entry!r}: ['fc_0.tmp_0']}}"
        )
    return names.get(entry)


def checked_platforms(platforms: Sequence[str]) -> tuple[str, ...]:
    """Check names of platforms, and return them as a tuple without repetitions.

    Raises:
      ArgumentError: a platform is unknown.
    """
    found = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    if not found or any(platform not in _KNOWN_PLATFORMS for platform in found):
        raise errors.ArgumentError(
            f"platforms={platforms!r}: expected some of {', '.join(map(repr, _KNOWN_PLATFORMS))}, as in "
            f"platforms=['cpu', 'cuda']"
        )
    return tuple(dict.fromkeys(found))


_ENTRY = "train"
_STEP, _ROOT = "@step", "@root"


class TrainingFunction:
    """A training step of a program as a pure function of arrays, which can be exported.

    Attributes:
      arrays: the arrays that a step reads, by their names in `Session.state`. A learning rate is called
        `@learning_rate/PROGRAM/INDEX`; the value -1 stands for the declared schedule.
      feeds: declarations of the feeds by name.
      outputs: descriptions of the results of a step.
      states: names of the arrays that are not parameters.
      random: False, because the key is computed from the arrays `@root` and `@step`.
      by_row: None, because a step has no results for single rows.
      table: the `fluid.reader.Table` of the program; None if the program has no Table.

    Raises:
      ArgumentError: the program minimises no loss, or the session has several devices or several models.
    """

    random = False
    by_row: bool | None = None

    def __init__(self, session: Session, program: Program):
        engine = session.engine
        if not program.minimizes:
            raise errors.ArgumentError(
                f"save_training_step: the program {program.name} minimises nothing, expected optimizer.minimize(loss) "
                f"in it; save_inference_model exports a program without updates"
            )
        if engine.layout.mesh is not None or engine.members is not None:
            raise errors.ArgumentError(
                f"save_training_step exports a step of one training on one device, found "
                f"{'a population' if engine.layout.mesh is None else f'{len(session.place)} devices'}; export the step "
                f"of a Trainer without parallel=: fluid.Trainer(program, optimizer, params=trainer.params)"
            )
        request = Request(TRAIN, None, tuple(program.feeds))
        rules = engine.rules[program.name]
        self._step = Step(program, rules, request, engine.function, engine.freezing.names)
        self._program = program
        state, constants = engine.arguments(self._step)
        slots, self._slots = jax.tree_util.tree_flatten_with_path({program.name: state.slots})
        self._slot_names = [slot_name(path) for path, _ in slots]
        self._rates = [f"{PREFIX}{program.name}/{i}" for i in range(len(rules))]
        self.arrays: dict[str, Any] = {**state.arrays, **constants.arrays, _STEP: state.step}
        self.arrays |= dict(zip(self._slot_names, (value for _, value in slots), strict=True))
        self.arrays |= dict(zip(self._rates, constants.rates, strict=True))
        if constants.root is not None:
            self.arrays[_ROOT] = constants.root
        self.feeds: dict[str, FeedSpec] = dict(program.feeds)
        self.table = program.table
        self.states: Collection[str] = self.arrays.keys() - program.parameters.keys()
        self.outputs = self._described()

    def __call__(
        self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], key: Any
    ) -> tuple[dict[str, Any], list[Any]]:
        """Run a training step."""
        del key
        slots = jax.tree.unflatten(self._slots, [arrays[n] for n in self._slot_names])[self._program.name]
        state = TrainingState({n: arrays[n] for n in self._step.carried}, slots, arrays[_STEP])
        rates = [arrays[n] for n in self._rates]
        constants = Constants({n: arrays[n] for n in self._step.kept}, arrays.get(_ROOT), rates)
        given = {name: value_of(leaves) for name, leaves in feeds.items()}
        after, found = self._step.train(state, constants, given, {})
        changed = dict(zip(self._slot_names, jax.tree.leaves(after.slots), strict=True))
        return {**after.arrays, **changed, _STEP: after.step}, [leaves_of(value) for value in found.fetched]

    def _described(self) -> tuple[Output, ...]:
        feeds = {name: leaves_of(value) for name, value in self._program.stand_ins().items()}
        _, results = jax.eval_shape(lambda arrays, feeds: self(arrays, feeds, None), self.arrays, feeds)
        names = self._program.output_names or [None] * len(results)
        return tuple(
            Output(name, None, declared.shape, declared.dtype, level_of(value_of(leaves)))
            for name, declared, leaves in zip(names, self._program.outputs, results, strict=True)
        )


def save_step(
    path: PathLike,
    session: Session,
    program: Program,
    *,
    platforms: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
    buckets: Any = None,
) -> None:
    """Export a training step with its arrays to one file; see `Trainer.save_training_step`."""
    function = TrainingFunction(session, program)
    chosen = checked_platforms(platform_of(session.device) if platforms is None else platforms)
    sizes = None if batch_sizes is None else checked_sizes("batch_sizes", batch_sizes)
    exported = export(function, function.arrays, chosen, sized_forms(function.feeds, sizes, buckets))
    arrays = {name: np.asarray(array) for name, array in function.arrays.items()}
    write_model(path, standalone.STEP, {_ENTRY: function}, {_ENTRY: exported}, arrays, chosen)
