"""LoadReport: the arrays that a program took from a source, and the arrays that are missing, extra or skipped."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from fluid._util.text import counted

log = logging.getLogger("fluid")
_SHOWN = 10


@dataclass(frozen=True, repr=False)
class LoadReport:
    """The result of loading a file or named arrays into a program; `print` shows a summary.

    Attributes:
      where: the origin of the arrays.
      taken: names of the parameters and states that were loaded.
      missing: parameters and states that the source lacks, which keep their values; with dtype and shape.
      extra: names of the source that the program does not have; with dtype and shape.
      skipped: arrays left out by `skip=` and `names=`, with dtype and shape in the source and in the program.

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
        """True if the program took every array that it has, and no array of the source was left."""
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
        """Log the report; as a warning if arrays keep their values or are not used.

        Args:
          may_be_extra: True if unused arrays are expected.
        """
        unexpected = self.missing or (self.extra and not may_be_extra)
        log.log(logging.WARNING if unexpected else logging.INFO, "%s", self)


def _listed(arrays: Mapping[str, str]) -> str:
    more = f", and {len(arrays) - _SHOWN} more" if len(arrays) > _SHOWN else ""
    return ", ".join(f"{name} {text}" for name, text in list(arrays.items())[:_SHOWN]) + more
