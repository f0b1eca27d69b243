"""Names of Fluid that are not here, and what takes their place."""

_INSTEAD = {
    "IfElse": "layers.where(condition, x, y) to choose for each example, layers.cond(pred, true_fn, false_fn) for all",
    "Switch": "layers.case([(condition, lambda: value), ...], default=lambda: value), which returns the value that a "
    "Switch would assign",
    "While": "layers.while_loop(cond, body, loop_vars), which returns the values that the block would change",
}


def __getattr__(name: str) -> None:
    instead = f"; use {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module 'fluid.layers' has no attribute {name!r}{instead}", name=name)
