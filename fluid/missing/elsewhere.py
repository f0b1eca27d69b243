"""Names that other libraries have for what is called something else here; who uses one is told how it is spelled."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class SpelledElsewhere:
    """Its subclasses list such names; all other attributes, also those that are not there, are as they would be.

    Attributes:
      _spelled: what to write instead, by name.

    Example:
      >>> class Reader(SpelledElsewhere):
      ...     _spelled = {"load": "reader.read(path)"}
      >>> Reader().load
      Traceback (most recent call last):
      AttributeError: 'Reader' object has no attribute 'load'; write reader.read(path)
      >>> hasattr(Reader(), "load")
      False
    """

    _spelled: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # to checkers of types, every name would be there

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if name in kind._spelled:
                raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}; write {kind._spelled[name]}")
            return object.__getattribute__(self, name)  # raises what was raised before, also inside of a property
