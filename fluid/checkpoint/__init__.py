"""Checkpoints and parameters in files: writes are atomic, and reading never runs code from a file."""

from fluid._util.paths import PathLike
from fluid.checkpoint.array_files import (
    PARAMS_FILE,
    PERSISTABLES_FILE,
    Loaded,
    file_in,
    load_arrays,
    load_file,
    read_npy,
    save_arrays,
    warn_of_ending,
    write_npy,
    zip_entry,
)
from fluid.checkpoint.atomic import replaced
from fluid.checkpoint.integrity import NONSENSE, check_structure, natural
from fluid.checkpoint.match import (
    RENAME_THEM,
    TAKE_A_PART,
    LoadReport,
    Origin,
    check_match,
    check_paths,
    choose,
    other_origins,
)
from fluid.checkpoint.recognize import instead, recognized
from fluid.checkpoint.safetensors import is_safetensors
from fluid.checkpoint.source import ArraySource, Parameters, Rename, newest_checkpoint, renamed, source_of
from fluid.checkpoint.state_dict import NameTable, StateDictReport, fit, read_state_dict

__all__ = [
    "NONSENSE",
    "PARAMS_FILE",
    "PERSISTABLES_FILE",
    "LoadReport",
    "Loaded",
    "Origin",
    "Parameters",
    "PathLike",
    "RENAME_THEM",
    "Rename",
    "TAKE_A_PART",
    "ArraySource",
    "StateDictReport",
    "NameTable",
    "check_match",
    "check_paths",
    "check_structure",
    "choose",
    "file_in",
    "fit",
    "instead",
    "is_safetensors",
    "load_arrays",
    "load_file",
    "natural",
    "newest_checkpoint",
    "other_origins",
    "read_npy",
    "read_state_dict",
    "recognized",
    "renamed",
    "replaced",
    "save_arrays",
    "source_of",
    "warn_of_ending",
    "write_npy",
    "zip_entry",
]
