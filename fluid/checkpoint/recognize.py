"""Recognition of files and folders of an unexpected kind, for errors that name the call to read them."""

import pathlib
import zipfile
from typing import NamedTuple

from fluid.checkpoint.folder import META, STEP


class _FileKind(NamedTuple):
    """A kind of file or folder.

    Attributes:
      what: a name for messages.
      as_parameters: the call that loads parameters from the path; `{path}` stands for the quoted path.
      as_model: the call that runs the path as a model, or converts it to a model.
    """

    what: str
    as_parameters: str
    as_model: str


_NAMES = 'rename={"NAME THERE": "NAME HERE"} says which array is which'
_KINDS = {
    "exported": _FileKind(
        "an exported model, which holds its program too",
        "fluid.Inferencer(param_path={path}) runs it without infer_func; "
        "trainer.load_params(fluid.Inferencer(param_path={path}).session.params()) takes its parameters alone",
        "fluid.Inferencer(param_path={path})",
    ),
    "training step": _FileKind(
        "an exported training step, which makes updates and no predictions",
        "standalone.load({path}).arrays, by the standalone.py in it, has its arrays by name",
        "standalone.load({path}), by the standalone.py in it, runs it; trainer.save_inference_model(...) exports a "
        "model",
    ),
    "parameters": _FileKind(
        "a file of parameters, which holds no program",
        "trainer.load_params({path})",
        "fluid.Inferencer(program, param_path={path}) runs it with the program function; "
        'fluid.io.save_inference_model("model.fluid", program, {path}) exports a model',
    ),
    "checkpoints": _FileKind(
        "a folder of checkpoints",
        "fluid.Inferencer(program, checkpoint={path}) runs the newest one, and "
        "trainer.load_params(fluid.Inferencer(program, checkpoint={path}).session.params()) starts from it",
        "fluid.Inferencer(program, checkpoint={path}) runs the newest one; trainer.save_inference_model(...) exports a "
        "model",
    ),
    "checkpoint": _FileKind(
        "one checkpoint of a folder",
        "fluid.Inferencer(program, checkpoint={parent}) takes the folder, and runs the newest one",
        "fluid.Inferencer(program, checkpoint={parent}) takes the folder, and runs the newest one",
    ),
    "online": _FileKind(
        "the folder of a fluid.OnlineTrainer",
        "fluid.Inferencer(program, checkpoint={checkpoints}) runs its newest checkpoint",
        "fluid.OnlineTrainer(..., publish_to=...) publishes models; fluid.Inferencer(program, "
        "checkpoint={checkpoints}) runs its newest checkpoint",
    ),
    "original": _FileKind(
        "a model that PaddlePaddle Fluid saved",
        "fluid.Inferencer(param_path={path}) runs it without infer_func; "
        "trainer.load_params(fluid.io.load_inference_model({path})[0].params) takes its parameters alone",
        "fluid.Inferencer(param_path={path}); `python -m fluid convert` makes a file for servers",
    ),
    "original parameters": _FileKind(
        "parameters that PaddlePaddle Fluid saved",
        "trainer.load_params(fluid.io.load_fluid_params({path})); names= names the variables where one file holds all",
        "fluid.Inferencer(program, params=fluid.io.load_fluid_params({path}))",
    ),
    "versions": _FileKind(
        "a folder with versions of an exported model",
        "fluid.Inferencer(param_path={newest}) runs one of them",
        'fluid.serve({"model": {path}}) serves the newest, fluid.Inferencer(param_path={newest}) runs one of them',
    ),
    "safetensors": _FileKind(
        "a safetensors file under another name",
        "rename the file to {stem}.safetensors: trainer.load_params('{stem}.safetensors')",
        "rename the file to {stem}.safetensors: fluid.Inferencer(program, param_path='{stem}.safetensors')",
    ),
    "npz": _FileKind(
        "an .npz file of NumPy",
        "trainer.load_params(dict(numpy.load({path}))), where " + _NAMES,
        "fluid.Inferencer(program, params=dict(numpy.load({path}))), where " + _NAMES,
    ),
    "npy": _FileKind(
        "one array that NumPy saved, without a name",
        'trainer.load_params({"fc_0.w_0": numpy.load({path})}, strict=False)',
        "fluid.Inferencer(program, param_path=...) needs a file of trainer.save_params",
    ),
    "torch": _FileKind(
        "a file of PyTorch",
        "trainer.load_params({name: value.numpy() for name, value in torch.load({path}).items()}), where " + _NAMES
        + "; weights of torch.nn.Linear are transposed here. Or save it by safetensors.torch.save_file(state_dict, "
        "'{stem}.safetensors'), or give a table of names: fluid.io.load_state_dict(trainer, {path}, table)",
        "fluid.Inferencer(program, params={name: value.numpy() for name, value in torch.load({path}).items()}, "
        "rename=...), with a program function of fluid; weights of torch.nn.Linear are transposed here",
    ),
    "keras": _FileKind(
        "a file of Keras (HDF5)",
        "trainer.load_params({w.path: w.numpy() for w in keras.saving.load_model({path}).weights}), where " + _NAMES
        + ". Or give a table of names: fluid.io.load_state_dict(trainer, {path}, table)",
        "fluid.Inferencer(program, params={w.path: w.numpy() for w in keras.saving.load_model({path}).weights}, "
        "rename=...), with a program function of fluid",
    ),
    "pickle": _FileKind(
        "a pickle file, which may run anything when it is read",
        "read it where you trust it, and give arrays by name: trainer.load_params({name: array, ...})",
        "read it where you trust it, and give arrays by name: fluid.Inferencer(program, params={name: array, ...})",
    ),
}  # fmt: skip
_FORMATS = {
    b'"fluid-artifact"': "exported",
    b'"fluid-training-step"': "training step",
    b'"fluid-arrays"': "parameters",
}
_MAGIC = {
    b"\x89HDF\r\n\x1a\n": "keras",
    b"\x93NUMPY": "npy",
    b"\x80\x02": "torch",  # PyTorch before 1.6 began its files with a pickle of protocol 2
    b"\x80": "pickle",
}


_WANTED = {
    "parameters": "no parameter file of fluid",
    "exported": "no exported model",
    "checkpoints": "no folder of checkpoints",
    "original": "no model that PaddlePaddle Fluid saved",
}


def instead(path: pathlib.Path, wanted: str) -> str | None:
    """Return a message with the kind of a file or folder and the call that reads it.

    Returns None for the wanted kind, and for an unknown kind.

    Args:
      wanted: the expected kind: "parameters", "exported" for a model that runs, "checkpoints", or "original" for a
        model of PaddlePaddle Fluid.
    """
    kind = recognized(path)
    if kind is None or kind == wanted:
        return None
    found = _KINDS[kind]
    call = found.as_parameters if wanted == "parameters" else found.as_model
    return f"{str(path)!r} is {_WANTED[wanted]}, but {found.what}: {_filled(call, path)}"


def recognized(path: pathlib.Path) -> str | None:
    """Return the kind of a file or folder, such as "npz"; None for an unknown kind or a path that does not exist.

    Example:
      >>> import numpy as np
      >>> np.savez("arrays.npz", w=np.ones(3))
      >>> recognized(pathlib.Path("arrays.npz")), recognized(pathlib.Path("nowhere"))
      ('npz', None)
    """
    try:
        return _of_folder(path) if path.is_dir() else _of_file(path) if path.is_file() else None
    except Exception:  # a damaged archive can raise errors of many types
        return None


def _of_folder(path: pathlib.Path) -> str | None:
    names = {entry.name for entry in path.iterdir()}
    steps = [path / name for name in names if STEP.fullmatch(name)]
    if "journal.db" in names:
        return "online"
    if any((step / META).is_file() for step in steps):
        return "checkpoints"
    if any((step / "model.fluid").is_file() for step in steps):
        return "versions"
    if META in names and STEP.fullmatch(path.name):
        return "checkpoint"
    if "__model__" in names:
        return "original"
    files = [path / name for name in names if (path / name).is_file()]
    return "original parameters" if files and all(_of_file(f) == "original parameters" for f in files) else None


def _of_file(path: pathlib.Path) -> str | None:
    with path.open("rb") as file:
        head = file.read(20)
    if zipfile.is_zipfile(path):
        return _of_archive(path)
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return "torch" if kind == "pickle" and path.suffix in (".pt", ".pth") else kind
    if len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return "safetensors"
    # PaddlePaddle's file of a variable begins with its version, 0, its number of LoD levels, 0 for parameters, the
    # version of the tensor, 0, and the size of its description.
    return "original parameters" if len(head) == 20 and not any(head[:5]) and any(head[16:]) else None


def _of_archive(path: pathlib.Path) -> str | None:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if "manifest.json" in names:
            with archive.open("manifest.json") as manifest:
                head = manifest.read(200)
            return next((kind for format, kind in _FORMATS.items() if format in head), None)
    if any(name.endswith("data.pkl") for name in names):
        return "torch"
    if any(name.endswith(".weights.h5") for name in names):
        return "keras"
    return "npz" if names and all(name.endswith(".npy") for name in names) else None


def _filled(call: str, path: pathlib.Path) -> str:
    """Insert the path and its parts into `call`, the text of a call with placeholders such as `{path}`."""
    numbers = [int(entry.name) for entry in path.iterdir() if STEP.fullmatch(entry.name)] if path.is_dir() else []
    return (
        call.replace("{path}", repr(str(path)))
        .replace("{parent}", repr(str(path.parent)))
        .replace("{checkpoints}", repr(str(path / "checkpoints")))
        .replace("{newest}", repr(str(path / str(max(numbers, default=1)))))
        .replace("{stem}", str(path.with_suffix("")))
    )
