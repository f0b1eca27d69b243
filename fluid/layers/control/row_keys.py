"""Random keys for some rows of a batch, which draw the numbers of these rows in the whole batch, equal to the bit."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core.equations import inner_jaxprs, user_line

_BITS = "random_bits"
_SPLIT = "random_split"
_THREEFRY = "threefry2x32"
_HALF = 0xFFFF


class Draw(NamedTuple):
    """An equation that draws random bits or splits a key.

    Attributes:
      kind: the name of the primitive in JAX.
      shape: the shape of the draw for one key.
      key: the dtype of the key.
      line: the user's line that created the equation.
    """

    kind: str
    shape: tuple[int, ...]
    key: Any
    line: str


class RowKeys:
    """Keys for some rows of a batch.

    A layer with such a key and some rows draws the numbers that it would draw for these rows in the whole batch. JAX's
    own generator draws each element separately, so only the needed rows are drawn. With other generators all rows are
    drawn, and the needed rows are selected.

    Args:
      owner: the layer, for messages.
      key: the key for the whole batch.
      batch: the number of rows of the whole batch.
      row: a function of the index of the first row, uint32 `[]`, and the indices of rows in the part, uint32 `[rows]`.
        It returns the indices of these rows in the batch.
        numbers in the batch.

    Example:
      >>> keys = RowKeys("repeat_0", jax.random.key(3), 6, lambda first, number: first + number)
      >>> def draw(key, rows):
      ...     return jax.random.normal(key, (rows, 4))
      >>> whole = jax.make_jaxpr(lambda: draw(jax.random.key(3), 6))()
      >>> keys.learn(whole.jaxpr, jax.make_jaxpr(lambda: draw(keys.key(keys.words, 0), 2))().jaxpr, 2)
      >>> drawn = draw(keys.key(keys.words, 4), 2)
      >>> bool((drawn == draw(jax.random.key(3), 6)[4:]).all())
      True
    """

    def __init__(self, owner: str, key: Any, batch: int, row: Callable[[Any, Any], Any]):
        from jax.extend.random import define_prng_impl

        self._owner = owner
        self._batch = batch
        self._row = row
        self._base = jax.random.key_impl(key)
        self._along: dict[tuple[str, tuple[int, ...]], int | None] = {}
        self.words = jax.random.key_data(key)
        self._impl: Any = define_prng_impl(
            key_shape=(self.words.shape[0] + 1,),
            seed=self._refuse_seed,
            split=self._split,
            fold_in=self._fold_in,
            random_bits=self._bits,
            name="rows",
            tag="rows",
        )

    def key(self, words: Any, first: Any) -> Any:
        """Return the key of the part whose first row has the index `first`; `words` are the whole batch's key data."""
        last = jnp.asarray(first, jnp.uint32).reshape(1)
        return jax.random.wrap_key_data(jnp.concatenate([words, last]), impl=self._impl)

    def learn(self, whole: Any, part: Any, rows: int) -> None:
        """Find the dimension of rows in each draw.

        Args:
          whole: the equations for the whole batch.
          part: the equations for some rows, with a key of `key`.
          rows: the number of these rows.

        Raises:
          ArgumentError: a draw for all rows cannot be divided into draws for some of the rows.
        """
        mine = jax.eval_shape(self.key, self.words, 0).dtype
        for dimension, draw in rows_of_draws(self._owner, whole, part, self._batch, rows):
            if dimension is not None and draw.key != mine:
                raise _refused(self._owner, draw.line, "with a key of its own; leave seed= out there")
            if dimension is not None and draw.kind == _SPLIT and str(self._base) != _THREEFRY:
                raise _refused(
                    self._owner, draw.line, f"with a key for each row, which {self._base} does not keep apart"
                )
            if self._along.setdefault((draw.kind, draw.shape), dimension) != dimension:
                raise _refused(self._owner, draw.line, f"{draw.shape}, which may be rows or not; change microbatches=")

    def _dimension(self, kind: str, shape: Sequence[int]) -> int | None:
        if (kind, tuple(shape)) not in self._along:
            raise _refused(self._owner, "its block", f"{tuple(shape)} within one operation of JAX")
        return self._along[kind, tuple(shape)]

    def _bits(self, words: Any, width: int, shape: tuple[int, ...]) -> Any:
        along = self._dimension(_BITS, shape)
        dtype = jnp.dtype(f"uint{width}")
        key = jax.random.wrap_key_data(words[:-1], impl=self._base)
        if along is None:
            return jax.random.bits(key, shape, dtype)
        if not self._element_by_element():
            return self._taken(jax.random.bits(key, self._whole(shape, along), dtype), words, shape, along)
        high, low = self._drawn(words, shape, along)
        if width == 64:
            return (high.astype(dtype) << 32) | low.astype(dtype)
        return (high ^ low).astype(dtype)

    def _split(self, words: Any, shape: tuple[int, ...]) -> Any:
        along = self._dimension(_SPLIT, shape)
        key = jax.random.wrap_key_data(words[:-1], impl=self._base)
        if along is None:
            found = jax.random.key_data(jax.random.split(key, shape))
        elif self._element_by_element():
            found = jnp.stack(self._drawn(words, shape, along), axis=-1)
        else:
            every = jax.random.key_data(jax.random.split(key, self._whole(shape, along)))
            found = self._taken(every, words, shape, along)
        return jnp.concatenate([found, jnp.broadcast_to(words[-1:], (*shape, 1))], axis=-1)

    def _fold_in(self, words: Any, number: Any) -> Any:
        key = jax.random.fold_in(jax.random.wrap_key_data(words[:-1], impl=self._base), number)
        return jnp.concatenate([jax.random.key_data(key), words[-1:]])

    def _refuse_seed(self, seed: Any) -> Any:
        raise NotImplementedError("such a key is made of another key")

    def _element_by_element(self) -> bool:
        """Return whether each element of a draw depends only on its index."""
        return str(self._base) == _THREEFRY and bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]

    def _whole(self, shape: tuple[int, ...], along: int) -> tuple[int, ...]:
        return (*shape[:along], self._batch, *shape[along + 1 :])

    def _rows(self, words: Any, count: int) -> Any:
        return self._row(words[-1], jnp.arange(count, dtype=jnp.uint32))

    def _taken(self, every: Any, words: Any, shape: tuple[int, ...], along: int) -> Any:
        return jnp.take(every, self._rows(words, shape[along]), axis=along, mode="clip")

    def _drawn(self, words: Any, shape: tuple[int, ...], along: int) -> tuple[Any, Any]:
        """Return the two outputs of Threefry for the indices of the elements, uint32 arrays of the shape."""
        from jax.extend.random import threefry2x32_p

        high, low = places(shape, along, self._rows(words, shape[along]), self._batch)
        first, second = threefry2x32_p.bind(words[0], words[1], high, low)
        return first, second


def rows_of_draws(owner: str, whole: Any, part: Any, batch: int, rows: int) -> Iterator[tuple[int | None, Draw]]:
    """Yield each draw for some rows, with the dimension of the rows, or None if the draw has no such dimension.

    Args:
      owner: the layer, for messages.
      whole: the equations for the whole batch.
      part: the equations for some rows.
      batch: the number of rows of the batch.
      rows: the number of rows of the part.

    Raises:
      ArgumentError: a draw depends on the number of rows in another way than by one dimension.
    """
    drawn = list(_draws(owner, part))
    wanted = list(_draws(owner, whole))
    if len(drawn) != len(wanted):
        raise _refused(owner, "its block", f"{len(wanted)} times for all rows and {len(drawn)} times for some")
    for mine, all_rows in zip(drawn, wanted, strict=True):
        differing = [i for i, (a, b) in enumerate(zip(mine.shape, all_rows.shape, strict=True)) if a != b]
        if not differing:
            yield None, mine
        elif [(mine.shape[i], all_rows.shape[i]) for i in differing] == [(rows, batch)]:
            yield differing[0], mine
        else:
            raise _refused(owner, mine.line, f"{all_rows.shape} for {batch} rows; draw it with these as one dimension")


def places(shape: Sequence[int], along: int, rows: Any, batch: int) -> tuple[Any, Any]:
    """Return the flat indices in the whole array, in row-major order, of the elements of some rows.

    Args:
      shape: of the array of some rows.
      along: the dimension of the rows.
      rows: the indices of the rows in the whole array, uint32 `[shape[along]]`.
      batch: the number of rows of the whole array.

    Returns:
      The high and the low 32 bits, uint32 of the shape.

    Example:
      >>> high, low = places((2, 3), 0, jnp.asarray([4, 1], jnp.uint32), 5)
      >>> low.tolist(), high.tolist()
      ([[12, 13, 14], [3, 4, 5]], [[0, 0, 0], [0, 0, 0]])
    """
    sizes = [batch if i == along else size for i, size in enumerate(shape)]
    high = low = jnp.zeros(shape, jnp.uint32)
    for i, size in enumerate(shape):
        numbers = rows if i == along else jnp.arange(size, dtype=jnp.uint32)
        spread = [-1 if j == i else 1 for j in range(len(shape))]
        more_high, more_low = (half.reshape(spread) for half in _times(numbers, math.prod(sizes[i + 1 :])))
        sums = low + more_low
        high = high + more_high + (sums < low).astype(jnp.uint32)
        low = sums
    return high, low


def _times(numbers: Any, factor: int) -> tuple[Any, Any]:
    """Return the high and the low 32 bits of the products of uint32 numbers and a factor below 2**64."""
    ones, tens = numbers & _HALF, numbers >> 16
    by_ones, by_tens = (jnp.uint32(part) for part in (factor & _HALF, (factor >> 16) & _HALF))
    least = ones * by_ones
    first, second = ones * by_tens, tens * by_ones
    middle = (least >> 16) + (first & _HALF) + (second & _HALF)
    high = tens * by_tens + (first >> 16) + (second >> 16) + (middle >> 16)
    return high + numbers * jnp.uint32(factor >> 32), (middle << 16) | (least & _HALF)


def _draws(owner: str, jaxpr: Any, line: str = "its block") -> Iterator[Draw]:
    """Yield all draws in order, including inner functions; `line` is the line of the equation around them."""
    for equation in jaxpr.eqns:
        # JAX records the lines inside a called function, but not for a function that it has traced before.
        here = user_line(equation)
        here = line if here == "unknown line" else here
        name = equation.primitive.name
        if name in (_BITS, _SPLIT):
            yield Draw(name, tuple(equation.params["shape"]), equation.invars[0].aval.dtype, here)
        elif name in ("random_gamma", "random_unwrap"):
            raise _refused(owner, here, f"by {name}, which does not say what it draws for each row")
        for inner in inner_jaxprs(equation):
            yield from _draws(owner, inner, here)


def _refused(owner: str, line: str, what: str) -> errors.ArgumentError:
    return errors.ArgumentError(
        f"{owner}: {line} draws random numbers {what}. With pipeline= a block is given a part of the rows at a time, "
        f"and must draw for each row what it draws for it in the whole batch; or draw outside, and give it through x"
    )
