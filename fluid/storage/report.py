"""LoadReport: what a program took of the arrays that it was given."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from fluid.formatting import counted

log = logging.getLogger("fluid")
_SHOWN = 10


@dataclass(frozen=True, repr=False)
class LoadReport:
    """What a program took of a file, or of other named arrays; as text, it says so.

    Attributes:
      where: what the arrays came from.
      taken: names of the parameters and states that have values from there now.
      missing: those that are not there, and keep their values; with dtype and shape.
      extra: names there that the program does not have; with dtype and shape.
      skipped: what `skip=` left out, with dtype and shape there and in the program.

    Example:
      >>> LoadReport("old.params", ("fc_0.w_0",), {"head.w_0": "float32[8, 3]"})
      1 array taken from old.params
        1 array keeps its value: head.w_0 float32[8, 3]
      >>> LoadReport("old.params", ("fc_0.w_0",)).complete
      True
    """

    where: str
    taken: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether the program took all that it has, and nothing was left over."""
        return not (self.missing or self.extra or self.skipped)

    def __repr__(self) -> str:
        lines = [f"{counted(len(self.taken), 'array')} taken from {self.where}"]
        if self.missing:
            keeps = "keeps its value" if len(self.missing) == 1 else "keep their values"
            lines.append(f"  {counted(len(self.missing), 'array')} {keeps}: {_listed(self.missing)}")
        if self.extra:
            lines.append(f"  {counted(len(self.extra), 'array')} there not used: {_listed(self.extra)}")
        if self.skipped:
            lines.append(f"  {counted(len(self.skipped), 'array')} skipped: {_listed(self.skipped)}")
        return "\n".join(lines)

    def tell(self, may_be_extra: bool = False) -> None:
        """Log the report, as a warning where arrays keep their values or are not used.

        Args:
          may_be_extra: whether arrays that are not used are what one expects.
        """
        unexpected = self.missing or (self.extra and not may_be_extra)
        log.log(logging.WARNING if unexpected else logging.INFO, "%s", self)


def _listed(arrays: Mapping[str, str]) -> str:
    more = f", and {len(arrays) - _SHOWN} more" if len(arrays) > _SHOWN else ""
    return ", ".join(f"{name} {text}" for name, text in list(arrays.items())[:_SHOWN]) + more
