"""Loading of exported models: read programs and parameters from one file.

An ExportedProgram is a Program that calls the functions in the file; a Session or an Inferencer runs it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.checkpoint import NONSENSE, check_structure, instead, read_npy
from fluid.core import NOT_KNOWN, TEST, Applied, ParameterSpec, Program, Shapes
from fluid.export import archive, standalone
from fluid.export.signature import BATCH, MANIFEST, Entry, leaves_of, value_of
from fluid.export.stablehlo import lowered, settings
from fluid.place import Place, device_of

Functions = list[tuple[Mapping[str, int], Callable[..., Any]]]


class ExportedProgram(Program):
    """A Program for one entry point of an exported model, which a Session or an Inferencer can run.

    The program runs only in test mode. Only exported values can be fetched.
    """

    exported = True

    def __init__(
        self,
        name: str,
        entry: Entry,
        arrays: Mapping[str, jax.Array],
        states: set[str],
        functions: Functions,
        where: str,
    ):
        site = f"the entry point {name!r} of {where}"
        self.name = name
        self.function = self.traced_function = self._no_function
        self.precision = None
        self.feeds = {feed.name: replace(feed, site=site) for feed in entry.feeds}
        specs = {n: _spec(n, array, None if n in states else True, site) for n, array in arrays.items()}
        self.parameters = {n: spec for n, spec in specs.items() if n not in states}
        self.states = {n: spec for n, spec in specs.items() if n in states}
        names = [output.name for output in entry.outputs]
        self.output_names = None if None in names else tuple(map(str, names))
        values = {o.value: o.array for o in entry.outputs if o.value is not None}
        self._shapes = self._marked = Shapes([output.array for output in entry.outputs], values)
        self.sites = dict.fromkeys(values, site)
        self.kinds = dict.fromkeys(values, "exported")
        self.sample_shapes = {}
        self.aliases = {o.name: o.value for o in entry.outputs if o.name is not None and o.value is not None}
        self.equation_values = {}
        self.returned = {}
        self.minimizes = []
        self.random = self._draws = entry.random
        self._by_row = entry.by_row
        self.lookups = ()
        self.dense_uses = frozenset()
        self.batch_sizes = _ladder(entry, BATCH)
        self.buckets = _buckets(entry)
        self.table = entry.table
        self._entry, self._arrays, self._functions = entry, arrays, functions

    def init(self, key: jax.Array | None, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the parameters and states in the file, by name; only those in `names` if it is given."""
        del key
        return {name: value for name, value in self._arrays.items() if names is None or name in names}

    def apply(
        self,
        arrays: Mapping[str, Any],
        feeds: Mapping[str, Any],
        *,
        key: jax.Array,
        mode: str = TEST,
        overrides: Mapping[str, Any] | None = None,
        perturbations: Mapping[str, Any] | None = None,
        row_perturbations: Mapping[str, list[Any]] | None = None,
        labelling: bool = False,
        plain: bool = False,
        parts: bool = False,
        frozen: frozenset[str] = frozenset(),
        gather: Any = None,
        until: frozenset[str] | None = None,
    ) -> Applied:
        """Run the exported function that fits the sizes of the feeds; see `Program.apply`.

        Raises:
          ArgumentError: the mode is not "test", or `parts` is True.
          FeedError: the program was not exported for the sizes of the feeds.
        """
        if mode != TEST:
            raise errors.ArgumentError(f"the program {self.name} was exported for inference; run it with mode='test'")
        if parts:
            raise errors.ArgumentError(
                f"the program {self.name} was exported for inference, so how its outputs combine over a data set is "
                f"not known; test it by the Trainer that has its function"
            )
        function = self._fitting(feeds)
        given = {name: leaves_of(value) for name, value in feeds.items()}
        named = {n: arrays[n] for n in self._arrays}
        data = jax.random.key_data(key) if self.random else None
        try:
            outputs = [value_of(leaves) for leaves in function(named, given, data)]
            values = {o.value: v for o, v in zip(self._entry.outputs, outputs, strict=True) if o.value is not None}
        except (TypeError, ValueError) as error:
            raise errors.ArtifactError(
                f"the manifest of the program {self.name} says something else than its function takes and returns: "
                f"{error}; expected a file that trainer.save_inference_model wrote"
            ) from error
        states = {n: arrays[n] for n in self.states}
        return Applied(outputs, states, {**feeds, **named, **values}, [], [], {})

    def mixing(self, names: Sequence[str] | None = None, overrides: Sequence[str] = ()) -> str | None:
        """Return None if each row of the results is computed from one row of the feeds; see `Program.mixing`."""
        del names, overrides
        return None if self._by_row else NOT_KNOWN if self._by_row is None else "a line of the exported function"

    def _no_function(self) -> Any:
        raise errors.ProgramError(f"the program {self.name} was exported, and its function is not here")

    def _fitting(self, feeds: Mapping[str, Any]) -> Callable[..., Any]:
        sizes = self._sizes(feeds)
        for fixed, function in self._functions:
            if fixed.items() <= sizes.items():
                return function
        known = sorted({tuple(fixed.items()) for fixed, _ in self._functions})
        raise errors.FeedError(
            f"the program {self.name} was exported for the sizes {'; '.join(_shown(dict(k)) for k in known)}, found "
            f"{_shown(sizes)}; export it for these as well: save_inference_model(..., batch_sizes=[1, 8], "
            f"buckets=[16, 64])"
        )

    def _sizes(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes of the feeds in their open dimensions, such as {"batch": 8, "steps0": 16}."""
        found: dict[str, tuple[int, str]] = {}
        for feed in self._entry.feeds:
            for symbol, size in feed.sizes(feeds[feed.name].shape).items():
                other, where = found.setdefault(symbol, (size, feed.name))
                if size != other:
                    what = "rows" if symbol == BATCH else "steps"
                    raise errors.FeedError(
                        f"{where!r} has {other} {what}, and {feed.name!r} has {size}; give as many of each"
                    )
                if symbol != BATCH and size < self._entry.least:
                    raise errors.FeedError(
                        f"{feed.name!r} is padded to {size} steps, expected at least {self._entry.least}"
                    )
        return {symbol: size for symbol, (size, _) in found.items()}


def _spec(name: str, array: jax.Array, trainable: bool | None, site: str) -> ParameterSpec:
    shape, dtype = tuple(array.shape), str(array.dtype)
    return ParameterSpec(name, shape, dtype, lambda key, shape, dtype: array, trainable, site=site)


def _ladder(entry: Entry, symbol: str) -> tuple[int, ...] | None:
    sizes = [function.sizes.get(symbol) for function in entry.functions]
    return None if None in sizes else tuple(sorted({size for size in sizes if size is not None}))


def _buckets(entry: Entry) -> dict[str, Any] | None:
    """Return the numbers of steps to which sequences must be padded, by feed name; None if all numbers are accepted."""
    found: dict[str, Any] = {}
    for feed in entry.feeds:
        ladders = [_ladder(entry, str(d)) for d in feed.dims[1 : 1 + feed.lod_level]]
        if ladders and ladders[-1] is not None:
            found[feed.name] = ladders[0] if len(ladders) == 1 else tuple(ladders)
    return found or None


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


class Artifact:
    """An exported model, read from a file: one or more entry points (programs) that share parameters.

    Attributes:
      path: the path of the file.
      entries: the signature of each entry point, by name.
      arrays: all parameters and states, by name.
      platforms: the platforms that the model was exported for.

    Raises:
      ArtifactError: the file is missing, damaged, of a newer version, or not an exported model.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      >>> params = {"fc_0.w_0": np.ones((2, 1), "float32"), "fc_0.b_0": np.zeros(1, "float32")}
      >>> fluid.io.save_inference_model("line.fluid", program, params)
      >>> artifact = fluid.export.load("line.fluid")
      >>> list(artifact.entries), list(artifact.arrays), artifact.platforms
      (['predict'], ['fc_0.w_0', 'fc_0.b_0'], ('cpu', 'cuda', 'tpu'))
      >>> fluid.Inferencer(param_path=artifact).infer({"x": [[1, 2]]})[0].tolist()
      [[3.0]]
    """

    def __init__(self, path: Any):
        self.path = archive.file_of(path)
        manifest, self._files = archive.read(path)
        try:
            standalone.check_version(manifest)
        except NONSENSE as error:
            raise errors.ArtifactError(
                f"{str(self.path)!r} cannot be read: {error}; install a newer fluid: pip install -U fluid-jax"
            ) from error
        if manifest["format"] == standalone.STEP:
            raise errors.ArtifactError(instead(self.path, "exported"))
        try:
            check_structure(manifest, MANIFEST, "manifest.json")
            self._made_with, self._settings = manifest["made_with"], manifest["settings"]
            self.platforms = tuple(manifest["platforms"])
            self.entries = {name: Entry.from_json(entry) for name, entry in manifest["entries"].items()}
            self.arrays = {name: self._array(name, entry) for name, entry in manifest["arrays"].items()}
            if not self.platforms:
                raise ValueError("it is for no platform")
            for entry in self.entries.values():
                files = {function.file for function in entry.functions}
                if missing := {*entry.arrays} - self.arrays.keys() or files - self._files.keys():
                    raise ValueError(f"{missing} is not in the file")
            self._states = {name for name, entry in manifest["arrays"].items() if entry["state"]}
        except NONSENSE as error:
            raise errors.ArtifactError(f"{str(self.path)!r} has a manifest that makes no sense: {error!r}") from error
        self._programs: dict[tuple[str, jax.Device], ExportedProgram] = {}
        self._placed: dict[jax.Device, dict[str, jax.Array]] = {}

    @property
    def table(self) -> dict[str, Any] | None:
        """JSON data of the `fluid.reader.Table` that converts raw rows to feeds; None if the model has no Table."""
        return next((entry.table.to_json() for entry in self.entries.values() if entry.table is not None), None)

    def program(self, entry: str | None = None, place: Place = None) -> ExportedProgram:
        """Return an entry point as a Program for a Session or an Inferencer. Programs on one device share their arrays.

        Raises:
          UnknownNameError: there is no such entry point, or there are several and `entry` is None.
          ArtifactError: the model was exported for other platforms, or by a newer JAX.
        """
        name = self._name(entry)
        device = device_of(place)
        if (name, device) not in self._programs:
            self._check(device)
            found = self.entries[name]
            functions = [(f.sizes, self._function(f.file)) for f in found.functions]
            placed = self._placed.setdefault(device, {})
            placed |= {n: jax.device_put(self.arrays[n], device) for n in found.arrays if n not in placed}
            arrays = {n: placed[n] for n in found.arrays}
            where = repr(self.path.name)
            self._programs[name, device] = ExportedProgram(name, found, arrays, self._states, functions, where)
        return self._programs[name, device]

    def stablehlo(self, sizes: Mapping[str, int] = {}, entry: str | None = None) -> bytes:
        """Convert an entry point, for fixed sizes, to one StableHLO module that contains the parameters.

        Other compilers accept the module, for example `iree-compile --iree-input-type=stablehlo`. The arguments of its
        function `main` are the feeds in their order: an array each, or for a sequence the padded data and its lengths.
        If the model draws random numbers, the last argument is the data of a random key.

        Args:
          sizes: a number for each open size (batch size or number of steps), by its name in the attribute `dims` of a
            feed: `{"batch": 8, "steps0": 16}`.

        Returns:
          The bytes of a StableHLO portable artifact, which can be written to a file.

        Raises:
          UnknownNameError: there is no such entry point, or there are several and `entry` is None.
          ArgumentError: a size is missing, no feed has a size of this name, or the model was exported for other sizes.

        Example:
          >>> import fluid
          >>> def program():
          ...     return fluid.layers.scale(fluid.layers.data("x", shape=[2]), 2.0)
          >>> fluid.io.save_inference_model("double.fluid", program, params={})
          >>> fluid.export.load("double.fluid").stablehlo({"batch": 8})[:4]
          b'ML\\xefR'
        """
        name = self._name(entry)
        found = self.entries[name]
        functions = [(f.sizes, self._function(f.file)) for f in found.functions]
        return lowered(found, {n: self.arrays[n] for n in found.arrays}, functions, sizes)

    def _name(self, entry: str | None) -> str:
        if entry is None and len(self.entries) == 1:
            return next(iter(self.entries))
        if entry in self.entries:
            return str(entry)
        found = "which one is not said" if entry is None else f"found {entry!r}"
        first = next(iter(self.entries), "predict")
        raise errors.UnknownNameError(
            f"{str(self.path)!r} has the entry points {', '.join(map(repr, self.entries))}, and {found}. "
            f"Name one: fluid.Inferencer(param_path=path, entry={first!r})"
        )

    def _check(self, device: jax.Device) -> None:
        here = settings()
        if here != self._settings:
            raise errors.ArtifactError(
                f"{str(self.path)!r} was exported with JAX set to {self._settings}, and it is set to {here} here; set "
                f"jax_enable_x64 and jax_default_prng_impl as they were"
            )
        platform = platform_of(device)
        if platform not in self.platforms:
            raise errors.ArtifactError(
                f"{str(self.path)!r} was exported for {', '.join(self.platforms)}, and this device is a {platform}; "
                f"export it with platforms=[{platform!r}, ...], or choose another: place={self.platforms[0]!r}"
            )

    def _function(self, file: str) -> Any:
        try:
            exported = jax.export.deserialize(bytearray(self._files[file]))
            if exported.calling_convention_version > jax.export.maximum_supported_calling_convention_version:
                raise ValueError(f"its calling convention is {exported.calling_convention_version}")
            # If the installed JAX is too old for this function, raise the error now, before the function first runs.
            exported.mlir_module()
        except ImportError as error:
            raise errors.ArtifactError(
                "reading an exported model needs the flatbuffers library, which JAX does not install: "
                "pip install 'fluid-jax[export]', or pip install flatbuffers"
            ) from error
        except Exception as error:
            raise errors.ArtifactError(
                f"{str(self.path)!r} was made with JAX {self._made_with.get('jax')}, and JAX {jax.__version__} cannot "
                f"read its functions: {error}; install that version or a newer one: pip install -U jax"
            ) from error
        return exported.call

    def _array(self, name: str, entry: Mapping[str, Any]) -> np.ndarray:
        content = self._files[entry["file"]]
        return read_npy(io.BytesIO(content), name, entry["shape"], entry["dtype"], len(content))


def load(path: Any) -> Artifact:
    """Read an exported model, and return its `Artifact`; return an Artifact unchanged.

    Example:
      >>> load("nowhere")
      Traceback (most recent call last):
      fluid.errors.ArtifactError: no exported model at 'nowhere'; write one with trainer.save_inference_model('nowhere')
    """
    return path if isinstance(path, Artifact) else Artifact(path)


def platform_of(device: jax.Device) -> str:
    """Return the name of a device's platform, as exported models spell it: "cpu", "cuda", "rocm" or "tpu"."""
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"
