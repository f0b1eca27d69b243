"""Export of a program in test mode to an ONNX model for ONNX Runtime, with the package jax2onnx."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.checkpoint import PathLike, replaced
from fluid.export.inference_function import InferenceFunction
from fluid.export.save import ProgramFunction, chosen_arrays, program_of
from fluid.export.signature import BATCH, FeedSignature
from fluid.export.stablehlo import sized_forms
from fluid.layers.kernels.data_format import traced_for
from fluid.runtime.fetch import Fetch

_TOLERANCE = 1e-5
_INSTALL = (
    "pip install onnx onnx-ir onnxruntime flax, and pip install --no-deps jax2onnx, which names an older "
    "orbax-checkpoint than fluid needs"
)


def save_onnx(
    path: PathLike,
    program_func: ProgramFunction,
    params: Mapping[str, Any] | PathLike,
    feed: Sequence[str] | None = None,
    fetch: Fetch | None = None,
) -> dict[str, list[int | str]]:
    """Export a program in test mode, with its parameters, to an ONNX model, and compare both on random feeds.

    The batch size and the number of sequence steps stay open. A sequence feed `NAME` becomes two inputs: `NAME`, the
    padded data, and `NAME.lengths`.

    Raises:
      ArtifactError: jax2onnx is not installed or cannot convert the program, or ONNX Runtime computes other results.
    """
    function = InferenceFunction(program_of(program_func), feed, fetch)
    if function.random:
        raise errors.ArtifactError("to ONNX: the program draws random numbers, expected a program that draws none")
    arrays = chosen_arrays({"": function}, params, None)
    form = next(sized_forms(function.feeds, None, None))
    feeds = [FeedSignature.of(spec, form.dims[name]) for name, spec in function.feeds.items()]
    sizes = form.symbols({})
    inputs = {name: shape for each in feeds for name, shape in _inputs(each, sizes).items()}

    def call(*leaves: Any) -> list[Any]:
        rest = iter(leaves)
        groups = [[next(rest) for _ in range(1 + each.lod_level)] for each in feeds]
        given = {e.name: tuple(group) if e.lod_level else group[0] for e, group in zip(feeds, groups, strict=True)}
        results: list[Any] = jax.tree.leaves(function(arrays, given, None))
        return results

    content = _converted(call, inputs, [_output_name(i, output.name) for i, output in enumerate(function.outputs)])
    _check(content, call, feeds)
    with replaced(pathlib.Path(path), errors.ArtifactError) as (_, file):
        file.write(content)
    return {name: [d if isinstance(d, int) else str(d) for d in shape.shape] for name, shape in inputs.items()}


def _converted(call: Any, inputs: Mapping[str, jax.ShapeDtypeStruct], outputs: Sequence[str]) -> bytes:
    """Convert a function to an ONNX model, and return its bytes."""
    try:
        import jax2onnx
        from jax.extend.core import jaxpr_as_fun
    except ImportError as error:
        raise errors.ArtifactError(f"to ONNX: jax2onnx cannot be imported ({error}); {_INSTALL}") from error
    try:
        # JAX traces the function before jax2onnx does, because jax2onnx patches jax.numpy functions that layers call.
        with traced_for(("onnx",)):
            closed = jax.make_jaxpr(call)(*inputs.values())
        closed = jax.make_jaxpr(lambda *leaves: _evaluated(closed.jaxpr, closed.consts, leaves))(*inputs.values())
        plain = jaxpr_as_fun(closed)
        model = jax2onnx.to_onnx(
            lambda *leaves: plain(*leaves),
            list(inputs.values()),
            input_names=list(inputs),
            output_names=list(outputs) if len(outputs) == len(closed.out_avals) else None,
        )
    except Exception as error:
        raise errors.ArtifactError(
            f"jax2onnx cannot convert this program: {type(error).__name__}: {error}; "
            f"fluid.io.save_inference_model exports it, and `python -m fluid convert --to stablehlo` is for others"
        ) from error
    return bytes(model.SerializeToString())


def _evaluated(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    """Evaluate the equations of a jaxpr, but compute max pooling on a reshaped array with fewer dimensions.

    jax2onnx 0.17 converts max pooling to windows of four dimensions, which ONNX Runtime does not support.
    """
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= zip(jaxpr.invars, arguments, strict=True)
    read = lambda v: v.val if hasattr(v, "val") else known[v]  # noqa: E731
    for equation in jaxpr.eqns:
        given = [read(v) for v in equation.invars]
        inner = equation.params.get("call_jaxpr") or equation.params.get("jaxpr")
        name = equation.primitive.name
        if name in ("jit", "pjit", "custom_jvp_call", "custom_vjp_call"):
            results = _evaluated(inner.jaxpr, inner.consts, given)
        elif name == "reduce_window_max":
            results = [_pooled(equation, given[0])]
        else:
            found = equation.primitive.bind(*given, **equation.params)
            results = found if equation.primitive.multiple_results else [found]
        known |= zip(equation.outvars, results, strict=True)
    return [read(v) for v in jaxpr.outvars]


def _pooled(equation: Any, x: Any) -> Any:
    """Compute max pooling, after a reshape that joins all leading dimensions without a window to one dimension."""
    params = dict(equation.params)
    moving = [i for i, k in enumerate(params["window_dimensions"]) if k > 1]
    first = min(moving, default=0) - 1
    if first < 1 or max(moving) - first > 3:
        return equation.primitive.bind(x, **params)
    shorter = {key: value[first:] if isinstance(value, tuple) else value for key, value in params.items()}
    found = equation.primitive.bind(jnp.reshape(x, (-1, *x.shape[first + 1 :])), **shorter)
    return jnp.reshape(found, (*x.shape[: first + 1], *found.shape[1:]))


def _inputs(feed: FeedSignature, sizes: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    shapes = jax.tree.leaves(feed.abstract(sizes))
    return dict(zip(_input_names(feed), shapes, strict=True))


def _input_names(feed: FeedSignature) -> list[str]:
    return [feed.name, f"{feed.name}.lengths", f"{feed.name}.inner_lengths"][: 1 + feed.lod_level]


def _output_name(index: int, name: str | None) -> str:
    return name or f"output_{index}"


def _check(content: bytes, call: Any, feeds: Sequence[FeedSignature]) -> None:
    """Check that ONNX Runtime and the function `call` compute equal results for random feeds of two sizes."""
    import onnxruntime

    random = np.random.default_rng(0)
    try:
        session = onnxruntime.InferenceSession(content)
        for rows, steps in ((1, 4), (3, 8)):
            given = {name: array for feed in feeds for name, array in _drawn(feed, rows, steps, random).items()}
            pairs = list(zip(session.run(None, given), jax.jit(call)(*given.values()), strict=True))
            for number, (found, wanted) in enumerate(pairs):
                scale = max(float(np.abs(np.asarray(wanted, "float64")).max(initial=0)), 1e-30)
                off = float(np.abs(np.asarray(found, "float64") - np.asarray(wanted, "float64")).max(initial=0)) / scale
                if not off <= _TOLERANCE:
                    raise ValueError(f"its output {number} is off by {off:.1e} of the largest number")
    except Exception as error:
        raise errors.ArtifactError(
            f"jax2onnx converted this program, and ONNX Runtime does not compute its results, expected them within "
            f"{_TOLERANCE:g}: {error}; `python -m fluid convert --to stablehlo` is for other compilers"
        ) from error


def _drawn(feed: FeedSignature, rows: int, steps: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random ONNX inputs for a feed, by name: the data, and for sequences their lengths, each at least 1."""
    shape = [d if isinstance(d, int) else rows if d == BATCH else steps for d in feed.dims]
    if np.issubdtype(feed.held, np.floating):
        data = random.normal(size=shape).astype(feed.held)
    else:
        low, high, _ = feed.limits_for(rows) or (0, 2, None)
        data = random.integers(low, high, size=shape).astype(feed.held)
    lengths = [
        random.integers(1, shape[1 + n] + 1, size=shape[: 1 + n]).astype(np.int32) for n in range(feed.lod_level)
    ]
    return dict(zip(_input_names(feed), [data, *lengths], strict=True))
