"""Stand-ins for the data loaders of torch, datasets and grain: the part that code blocks of the documentation use.

Tests run these code blocks without the libraries. If a library is installed, the code blocks use the library.
"""

import importlib.util
import types

import numpy as np


class Tensor:
    """A stand-in for a torch tensor: a dtype that NumPy does not know, a shape, and a conversion to an array."""

    def __init__(self, array):
        self.array = np.asarray(array)
        self.dtype = f"torch.{self.array.dtype}"
        self.shape = self.array.shape
        self.ndim = self.array.ndim

    def __len__(self):
        return len(self.array)

    def __getitem__(self, index):
        return Tensor(self.array[index])

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype)


class TensorDataset:
    def __init__(self, *tensors):
        self.tensors = tensors


class DataLoader:
    """A stand-in for torch's DataLoader: it yields lists of tensors; with shuffle=True, each pass has a new order."""

    def __init__(self, dataset, batch_size, shuffle=False):
        self.dataset, self.batch_size, self.rng = dataset, batch_size, np.random.default_rng(0) if shuffle else None

    def __iter__(self):
        count = len(self.dataset.tensors[0])
        order = np.arange(count) if self.rng is None else self.rng.permutation(count)
        for low in range(0, count, self.batch_size):
            yield [tensor[order[low : low + self.batch_size]] for tensor in self.dataset.tensors]


class Dataset:
    """A stand-in for Hugging Face's Dataset, whose rows are dicts."""

    def __init__(self, columns):
        self.columns_by_name = columns

    @classmethod
    def from_dict(cls, columns):
        return cls(columns)

    def with_format(self, kind):
        return self

    def __iter__(self):
        names = list(self.columns_by_name)
        return (dict(zip(names, row, strict=True)) for row in zip(*self.columns_by_name.values(), strict=True))

    def iter(self, batch_size):
        count = len(next(iter(self.columns_by_name.values())))
        for low in range(0, count, batch_size):
            yield {name: column[low : low + batch_size] for name, column in self.columns_by_name.items()}


class MapDataset:
    """A stand-in for Grain's MapDataset: it shuffles and batches elements, and its iterators can be resumed."""

    def __init__(self, elements):
        self.elements = elements

    @classmethod
    def source(cls, elements):
        return cls(list(elements))

    def shuffle(self, seed):
        return MapDataset([self.elements[i] for i in np.random.default_rng(seed).permutation(len(self.elements))])

    def batch(self, batch_size):
        groups = [self.elements[i : i + batch_size] for i in range(0, len(self.elements), batch_size)]
        return MapDataset([{name: np.stack([row[name] for row in rows]) for name in rows[0]} for rows in groups])

    def to_iter_dataset(self):
        return IterDataset(self.elements)


class IterDataset:
    def __init__(self, elements):
        self.elements = elements

    def __iter__(self):
        return DatasetIterator(self.elements)


class DatasetIterator:
    def __init__(self, elements):
        self.elements, self.number = elements, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.number == len(self.elements):
            raise StopIteration
        self.number += 1
        return self.elements[self.number - 1]

    def get_state(self):
        return {"next_index": self.number}

    def set_state(self, state):
        self.number = state["next_index"]


def modules(wanted):
    """Return a dict for `sys.modules` with stand-ins for those libraries in `wanted` that are not installed."""
    data = types.ModuleType("torch.utils.data")
    data.TensorDataset, data.DataLoader = TensorDataset, DataLoader
    utils = types.ModuleType("torch.utils")
    utils.data = data
    torch = types.ModuleType("torch")
    torch.utils, torch.from_numpy = utils, Tensor
    datasets = types.ModuleType("datasets")
    datasets.Dataset = Dataset
    grain = types.ModuleType("grain")
    grain.MapDataset = MapDataset
    made = (torch, utils, data, datasets, grain)
    missing = {name for name in wanted if importlib.util.find_spec(name) is None}
    return {module.__name__: module for module in made if module.__name__.partition(".")[0] in missing}
