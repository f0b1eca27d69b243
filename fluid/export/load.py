"""Loading of exported models: one file in, programs and parameters out."""

import io
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.checkpoint import NONSENSE, check_structure, instead, read_npy
from fluid.export import archive, standalone
from fluid.export.lowering import lowered
from fluid.export.program import ExportedProgram
from fluid.export.signature import MANIFEST, Entry
from fluid.export.stablehlo import settings
from fluid.place import Place, device_of


class Artifact:
    """An exported model: entry points that share parameters.

    Args:
      path: the path of the file, or of a directory that holds `model.fluid`.

    Attributes:
      path: the path of the file.
      entries: the signature of each entry point, by name.
      arrays: all parameters and states, by name.
      platforms: the platforms that the model was exported for.

    Raises:
      ArtifactError: the file is missing, damaged, of a newer version, or no exported model.

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
        """The JSON of the `fluid.reader.Table` of the entry points; None without a table."""
        return next((entry.table.to_json() for entry in self.entries.values() if entry.table is not None), None)

    def program(self, entry: str | None = None, place: Place = None) -> ExportedProgram:
        """Return an entry point as a program of `fluid.Session`. Programs on one device share their arrays.

        Args:
          entry: the name of the entry point; None if the file has only one.
          place: a device, see `fluid.place.device_of`.

        Raises:
          UnknownNameError: there is no such entry point, or there are several and `entry` is None.
          ArtifactError: the model was exported for other devices, or by a newer JAX.
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
        """Return an entry point for fixed sizes as one module of StableHLO, which holds the parameters.

        Other compilers take such a module, as `iree-compile --iree-input-type=stablehlo` does. The function `main`
        takes the feeds in their order: an array each, or for a sequence the padded data and its lengths. A model that
        draws random numbers takes the data of a key last.

        Args:
          sizes: a number for each size that the feeds leave open, by its name in the attribute `dims` of a feed:
            `{"batch": 8, "steps0": 16}`.
          entry: the name of the entry point; None if the file has only one.

        Returns:
          A portable artifact of StableHLO, the content of a file.

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
            exported.mlir_module()  # fails now, and not in the first run, if the compiler is too old
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
    """Return the name of the platform of a device, as the argument `platforms=` of exports has it."""
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"
