"""Files of named arrays: written whole or not at all, read without running anything that is in them."""

from fluid.storage.arrays import load_arrays, load_file, save_arrays
from fluid.storage.atomic import PathLike, replaced
from fluid.storage.match import CHECK_THE_PROGRAM, check_match, choose
from fluid.storage.npy import read_npy, size_limit, write_npy
from fluid.storage.origins import packed
from fluid.storage.rename import Rename, renamed
from fluid.storage.report import LoadReport
from fluid.storage.safetensors import is_safetensors
from fluid.storage.source import Parameters, Source, newest_checkpoint, source_of
from fluid.storage.zip_entry import zip_entry

__all__ = [
    "CHECK_THE_PROGRAM",
    "LoadReport",
    "Parameters",
    "PathLike",
    "Rename",
    "Source",
    "check_match",
    "choose",
    "is_safetensors",
    "load_arrays",
    "load_file",
    "newest_checkpoint",
    "packed",
    "read_npy",
    "renamed",
    "replaced",
    "save_arrays",
    "size_limit",
    "source_of",
    "write_npy",
    "zip_entry",
]
