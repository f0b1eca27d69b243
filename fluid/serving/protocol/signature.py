"""Signatures of served models: convert feeds and outputs to metadata, convert values to tensors, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import FeedSpec, NestedSequenceBatch, SequenceBatch
from fluid.reader import Table
from fluid.reader.buckets import padded_time
from fluid.serving.protocol.tensors import ANY, DTYPES, MessageTensor, datatype_of

# The suffixes of tensor names for sequence lengths: a batch of sequences is sent as a tensor of padded data, and one
# tensor of lengths for each nesting level.
_LENGTHS = (".lengths", ".inner_lengths")


@dataclass(frozen=True)
class ModelOutput:
    """An output of a served model.

    Attributes:
      name: the name of the output and of its tensor.
      shape: the shape of the array, without the time steps of sequences; None for a size that follows the batch.
      dtype: the dtype of the array.
      lod_level: 0 for arrays, 1 for sequences, 2 for sequences of sequences.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    lod_level: int = 0


@dataclass(frozen=True)
class Signature:
    """The feeds and outputs of a served model.

    Attributes:
      feeds: the declarations of the feeds by name.
      outputs: the outputs in the order in which the model returns them.
      named: True if the program names its outputs.
      random: True if the model draws random numbers, so that a `seed` repeats a response; None if the server does not
        report this.
      table: the Table by which the model encodes raw rows, or None.
    """

    feeds: Mapping[str, FeedSpec]
    outputs: Sequence[ModelOutput]
    named: bool = True
    random: bool | None = None
    table: Table | None = None

    def to_json(self) -> dict[str, Any]:
        """Return this signature as JSON, for the metadata of a model."""
        inputs = [part for spec in self.feeds.values() for part in _described(spec, _limits(spec))]
        outputs = [part for output in self.outputs for part in _described(output, {})]
        parameters: dict[str, Any] = {"named": self.named, "random": bool(self.random)}
        parameters |= {} if self.table is None else {"table": self.table.to_json()}
        return {"inputs": inputs, "outputs": outputs, "parameters": parameters}

    @classmethod
    def from_json(cls, found: Mapping[str, Any], site: str) -> "Signature":
        """Read the Signature from the metadata of a model.

        Raises:
          ProtocolError: the metadata has no signature.
        """
        try:
            feeds = [_feed(tensor, site) for tensor in _values(found["inputs"])]
            outputs = [ModelOutput(*_read(tensor)) for tensor in _values(found["outputs"])]
            parameters = found.get("parameters", {})
            named, random = bool(parameters.get("named", True)), parameters.get("random")
            table = Table.from_json(parameters["table"]) if "table" in parameters else None
            return cls({f.name: f for f in feeds}, outputs, named, None if random is None else bool(random), table)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise errors.ProtocolError(f"the metadata of {site} makes no sense: {error!r}") from error


def to_tensors(values: Mapping[str, Any]) -> list[MessageTensor]:
    """Convert feeds or outputs to tensors; sequences become a tensor of padded data, and tensors of lengths.

    Example:
      >>> [(t.name, t.data.tolist()) for t in to_tensors({"s": SequenceBatch.from_rows([[1, 2], [3]], time=8)})]
      [('s', [[1, 2], [3, 0]]), ('s.lengths', [2, 1])]
    """
    found = []
    for name, value in values.items():
        lengths = _lengths_of(value)
        if not lengths:
            found.append(MessageTensor(name, np.asarray(value)))
            continue
        longest = [int(n.max(initial=0)) for n in lengths]
        data = np.asarray(value.data)
        found.append(MessageTensor(name, data[(slice(None), *map(slice, longest))]))
        found.append(MessageTensor(name + _LENGTHS[0], lengths[0]))
        if len(lengths) == 2:
            found.append(MessageTensor(name + _LENGTHS[1], lengths[1][:, : longest[0]]))
    return found


def from_tensors(tensors: Sequence[MessageTensor], levels: Mapping[str, int]) -> dict[str, Any]:
    """Convert tensors to values by name: the inverse of `to_tensors`.

    Raises:
      ProtocolError: a tensor has an unknown name, lengths have no data, or lengths of a level are missing.
    """
    given = {tensor.name: tensor.data for tensor in tensors}
    values = {}
    for name in [name for name in levels if name in given]:
        data = given.pop(name)
        ends = [name + ending for ending in _LENGTHS[: levels[name]]]
        lengths = [_whole(end, given.pop(end)) for end in ends if end in given]
        if lengths and (len(lengths) != levels[name] or not isinstance(data, np.ndarray)):
            raise errors.ProtocolError(
                f"the sequences {name!r} come as rows, or padded with {' and '.join(map(repr, ends))}"
            )
        values[name] = data if not lengths else _BATCHES[len(lengths)](data, *lengths)
    if given:
        name = next(iter(given))
        known = [n + ending for n, level in levels.items() for ending in ("", *_LENGTHS[:level])]
        raise errors.ProtocolError(f"there is no tensor {name[:60]!r} here. {errors.nearest(name[:60], known)}")
    return values


def padded_as_before(value: Any) -> Any:
    """Pad sequences to a power of two time steps, as an Inferencer does; return a plain array unchanged."""
    if not isinstance(value, SequenceBatch | NestedSequenceBatch):
        return value
    sizes = [padded_time(size) for size in value.shape[1 : 1 + len(_lengths_of(value))]]
    data = _extended(value.data, sizes)
    if isinstance(value, SequenceBatch):
        return SequenceBatch(data, value.lengths)
    return NestedSequenceBatch(data, value.lengths, _extended(value.inner_lengths, sizes[:1]))


_BATCHES = {1: SequenceBatch, 2: NestedSequenceBatch}


def _extended(array: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    missing = [(0, more - size) for more, size in zip(sizes, array.shape[1:], strict=False)]
    return np.pad(array, [(0, 0), *missing, *[(0, 0)] * (array.ndim - 1 - len(missing))])


def _lengths_of(value: Any) -> list[np.ndarray]:
    names = ("lengths", "inner_lengths")[: {SequenceBatch: 1, NestedSequenceBatch: 2}.get(type(value), 0)]
    return [np.asarray(getattr(value, name)) for name in names]


def _whole(name: str, value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
        raise errors.ProtocolError(f"the tensor {name!r} holds lengths: whole numbers")
    # Lengths beyond the range of int32 are invalid; they are clipped to -1 or the maximum of int32, which are invalid
    # too.
    return np.clip(value, -1, np.iinfo(np.int32).max).astype(np.int32)


def _described(spec: FeedSpec | ModelOutput, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the metadata of the tensors of one feed or output: of its data, and of its sequence lengths."""
    level = spec.lod_level
    shape = [ANY if size is None else size for size in spec.shape]
    shape[1:1] = [ANY] * level
    if level:
        parameters = {**parameters, "lod_level": level}
    main = {"name": spec.name, "datatype": datatype_of(spec.dtype), "shape": shape}
    lengths = [
        {"name": spec.name + end, "datatype": "INT32", "shape": [ANY] * (1 + i), "parameters": {"of": spec.name}}
        for i, end in enumerate(_LENGTHS[:level])
    ]
    return [{**main, "parameters": parameters} if parameters else main, *lengths]


def _limits(spec: FeedSpec) -> dict[str, Any]:
    ranges = {"limits": spec.limits, "bounds": spec.bounds}
    return {name: list(found) for name, found in ranges.items() if found is not None}


def _values(found: Sequence[Any]) -> list[Any]:
    return [tensor for tensor in found if "of" not in tensor.get("parameters", {})]


def _read(tensor: Mapping[str, Any]) -> tuple[str, tuple[int | None, ...], str, int]:
    level = tensor.get("parameters", {}).get("lod_level", 0)
    shape = [None if size == ANY else size for size in tensor["shape"]]
    return tensor["name"], (*shape[:1], *shape[1 + level :]), str(DTYPES[tensor["datatype"]]), level


def _feed(tensor: Mapping[str, Any], site: str) -> FeedSpec:
    parameters = tensor.get("parameters", {})
    limits, bounds = (tuple(parameters[name]) if name in parameters else None for name in ("limits", "bounds"))
    return FeedSpec(*_read(tensor), limits=limits, bounds=bounds, site=site)
