"""Conversion of a block that computes each row of a batch separately to a block for some of the rows."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core.equations import inner_jaxprs, is_literal, user_line
from fluid.core.reduction import mixed_rows
from fluid.layers.base import Layer
from fluid.layers.control.pytrees import describe_tree

# A function of the index of the block, its arrays by name, and its input; it returns a value like the input.
Block = Callable[[Any, Any, Any], Any]

_DRAWS = ("random_bits", "random_split", "random_gamma")


class Rowwise(NamedTuple):
    """A block that reads nothing from outside.

    Attributes:
      function: called with the constants, the index of the first row in the batch, and the arguments of the block. The
        random key of a call is the key of the step, with this index folded in.
      constants: the values from outside that the block reads, and the words of its random key; a pytree of arrays.
    """

    function: Callable[..., Any]
    constants: Any


def count_rows(this: Layer, x: Any) -> int:
    """Return the number of rows of the values of a pytree.

    Raises:
      ShapeError: the numbers of rows differ.
    """
    counts = [leaf.shape[0] if leaf.ndim else -1 for leaf in jax.tree.leaves(x)]
    if len(set(counts)) != 1 or -1 in counts:
        raise errors.ShapeError(
            f"{this.name}: x is {describe_tree(x)}; with pipeline= every value in it has the rows of the batch as its "
            f"first dimension; what is the same for all rows is used within the block, from outside"
        )
    return int(counts[0])


def rowwise(this: Layer, block: Block, own: Any, x: Any, rows: int, axes: set[str]) -> Rowwise:
    """Return a block for some rows of a batch, which computes for them the results that they have in the whole batch.

    Random numbers are an exception: each part of the batch draws its own. Traces show which values from outside the
    block reads, and whether a row depends on other rows.

    Args:
      this: the layer.
      block: the block.
      own: the arrays of one block, or their shapes and dtypes, by name.
      x: the whole batch, a pytree of arrays `[batch, ...]`.
      rows: the number of rows in one call of the new block.
      axes: the mesh axes over which `jax.shard_map` will run the block.

    Raises:
      ArgumentError: a row of the result depends on several rows; the block draws equal random numbers for each part of
        the batch; or a loop in the block reads values from outside, for which JAX has no gradient.
    """
    given = this.frame.given
    key = jax.random.key(0) if given.key is None else given.key
    words, impl = jax.random.key_data(key), jax.random.key_impl(key)
    number = jnp.int32(0)

    def work(words: Any, first: Any, *rest: Any) -> Any:
        own_key = jax.random.fold_in(jax.random.wrap_key_data(words, impl=impl), first)
        with _drawing(given, None if given.key is None else own_key):
            return block(*rest)

    with core.manual_axes(axes):
        _check_apart(this, block, number, own, x)
        with _about_rows(this, x, rows):
            part = jax.make_jaxpr(work)(words, jnp.uint32(0), number, own, _of_rows(x, rows))
    if line := _fixed_draw(part.jaxpr, set(part.jaxpr.invars[:2])):
        raise errors.ArgumentError(
            f"{this.name}: {line} draws random numbers with a key of its own; leave seed= out there. With pipeline= a "
            f"block is given a part of the rows at a time, and would draw the same numbers for each part; or draw "
            f"outside, and give it through x"
        )
    if this.frame.mode == core.TRAIN:
        _check_loops(this, part.jaxpr)

    def function(constants: Any, first: Any, *rest: Any) -> Any:
        read, words = constants
        found = jax.core.eval_jaxpr(part.jaxpr, read, words, first, *jax.tree.leaves(rest))
        return jax.tree.unflatten(jax.tree.structure(x), found)

    return Rowwise(function, (part.consts, words))


def _check_apart(this: Layer, block: Block, number: Any, own: Any, x: Any) -> None:
    """Check that a block computes each row separately.

    Raises:
      ArgumentError: a row depends on other rows.
    """
    rows = max(count_rows(this, x), 2)
    traces = []
    for count in (rows, rows + 1):
        with _about_rows(this, x, count):
            traces.append((count, jax.make_jaxpr(block)(number, own, _of_rows(x, count)).jaxpr))
    line = mixed_rows(traces, len(jax.tree.leaves(x)))
    if line is not None:
        raise errors.ArgumentError(
            f"{this.name}: a row of what the block returns depends on other rows of the batch, at {line}. With "
            f"pipeline= a block is given a part of the rows at a time; compute each row by itself, as "
            f"layers.feature_norm does, or leave pipeline= out"
        )


def _check_loops(this: Layer, jaxpr: Any) -> None:
    """Check that loops and branches of a block read no values from outside that may need a gradient.

    JAX would compute the gradient on the outer mesh, which is not visible inside `jax.shard_map`.

    Raises:
      ArgumentError: a loop or branch reads such a value.
    """
    for equation in jaxpr.eqns:
        for inner in inner_jaxprs(equation):
            if equation.primitive.name in ("scan", "cond") and any(map(_is_from_outside, inner.invars)):
                raise errors.ArgumentError(
                    f"{this.name}: a loop or branch in the block, at {user_line(equation)}, reads a value from "
                    f"outside, which has no gradient with pipeline=; make it a parameter of the block or, if it has "
                    f"rows, give it through x"
                )
            _check_loops(this, inner)


def _fixed_draw(jaxpr: Any, fresh: set[Any], line: str = "its block") -> str | None:
    """Return the user's line of the first draw whose key does not come from `fresh`; None if there is none.

    Args:
      jaxpr: the equations.
      fresh: the variables that differ in each part of the batch; this function adds all that depend on them.
      line: the line of the equation around these equations.
    """
    for equation in jaxpr.eqns:
        moves = [not is_literal(v) and v in fresh for v in equation.invars]
        # JAX records the lines inside a called function, but not for a function that it has traced before.
        here = user_line(equation)
        here = line if here == "unknown line" else here
        if equation.primitive.name in _DRAWS and not any(moves):
            return here
        for inner in inner_jaxprs(equation):
            # The last inputs are the inputs of the inner equations: a branch has its index before them.
            same = zip(reversed(inner.invars), reversed(moves), strict=False)
            if found := _fixed_draw(inner, {v for v, moving in same if moving}, here):
                return found
        if any(moves):
            fresh |= set(equation.outvars)
    return None


def _is_from_outside(variable: Any) -> bool:
    mesh = variable.aval.sharding.mesh if hasattr(variable.aval, "sharding") else None
    moving = jnp.issubdtype(variable.aval.dtype, jnp.inexact)
    return moving and mesh is not None and not mesh.empty and not mesh.manual_axes


def _of_rows(x: Any, count: int) -> Any:
    """Return the shapes and dtypes of the values with `count` rows."""
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct((count, *array.shape[1:]), array.dtype), x)


@contextlib.contextmanager
def _drawing(given: Any, key: Any) -> Iterator[None]:
    """Let layers draw from another key."""
    before = given.key
    given.key = key
    try:
        yield
    finally:
        given.key = before


@contextlib.contextmanager
def _about_rows(this: Layer, x: Any, count: int) -> Iterator[None]:
    """Add a note to errors of a block that was called with another number of rows than the batch has."""
    try:
        yield
    except Exception as error:
        if count != count_rows(this, x):
            error.add_note(
                f"{this.name}: with pipeline= the block must take any number of rows, and was given {count} here; "
                f"values from outside that have rows go through x: repeat(lambda v: (f(*v), v[1]), n, (h, memory))"
            )
        raise
