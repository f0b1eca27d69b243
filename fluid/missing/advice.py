"""Names of Fluid that are not here: the AttributeError says what takes their place."""

from collections.abc import Callable, Mapping


def instead_of(module: str, instead: Mapping[str, str]) -> Callable[[str], None]:
    """A module's `__getattr__`, which is called for names that it does not have.

    Args:
      module: its name, for the message.
      instead: what to use, by name of Fluid.

    Example:
      >>> instead_of("fluid.io", {"PyReader": "a reader"})("PyReader")
      Traceback (most recent call last):
        ...
      AttributeError: module 'fluid.io' has no attribute 'PyReader'; use a reader
    """

    def missing(name: str) -> None:
        advice = f"; use {instead[name]}" if name in instead else ""
        raise AttributeError(f"module {module!r} has no attribute {name!r}{advice}", name=name)

    missing.__dict__["instead"] = instead
    return missing
