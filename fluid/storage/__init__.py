"""Files of named arrays: written whole or not at all, read without running anything that is in them."""

from fluid.storage.arrays import Loaded, load_arrays, load_file, save_arrays
from fluid.storage.atomic import PathLike, replaced
from fluid.storage.match import check_match
from fluid.storage.npy import read_npy, size_limit, write_npy
from fluid.storage.rename import Rename, renamed
from fluid.storage.safetensors import is_safetensors

__all__ = [
    "PathLike",
    "Rename",
    "check_match",
    "is_safetensors",
    "load_arrays",
    "read_npy",
    "renamed",
    "replaced",
    "save_arrays",
    "size_limit",
    "write_npy",
]
