"""Errors: every exception that fluid raises on purpose.

    FluidError
    |-- OutsideProgramError  (RuntimeError)  a layer was called while no program function runs
    |-- ProgramError         (ValueError)    a program function cannot be used as it is
    |-- ArgumentError        (ValueError)    an argument has an invalid value
    |-- ArgumentTypeError    (TypeError)     an argument has an invalid type
    |-- ShapeError           (ValueError)    a layer was given arrays that do not fit together
    |-- FeedError            (ValueError)    data does not fit what the program declares
    |   `-- FeedTypeError    (TypeError)     ... because of its dtype
    |-- UnknownNameError     (KeyError)      no feed, parameter or value has that name
    |-- MissingNameError     (AttributeError)  a module or an object of fluid has no such attribute to read or to set
    |-- ParameterError       (ValueError)    parameters do not match the program
    |-- ReaderError          (ValueError)    a reader yields no data, or an invalid minibatch
    |-- EOFException         (EOFError)      a reader that feeds a program is at its end
    |-- ParameterFileError   (OSError)       a parameter file is missing or of another format
    |-- CheckpointError      (OSError)       a checkpoint folder is in use, damaged or gone
    |-- ArtifactError        (OSError)       an exported model cannot be written, read or run here
    |-- ProtocolError        (ValueError)    a message is not one of the Open Inference Protocol
    |-- RemoteError          (ConnectionError)  a server does not answer, or refuses
    |-- OnlineError          (RuntimeError)  an OnlineTrainer cannot do the call in its present state
    |   `-- JournalError     (OSError)       ... because its journal is damaged, in use or cannot be written
    |       `-- JournalFullError             ... or is full until more rows are trained on
    |-- NonFiniteError       (FloatingPointError)  training produced an infinity or a NaN
    |-- DistributedError     (RuntimeError)  several processes do not work together, or a process does not join
    `-- DeviceError          (RuntimeError)  this machine does not have the requested device

Each class also derives from the built-in exception that a Python user would catch. A message says what was found, what
was expected, and the call that would have worked.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class FluidError(Exception):
    """Base class of every error that fluid raises on purpose."""


class FluidWarning(UserWarning):
    """The class of all warnings: a call works, but is slower than necessary, or the user probably means another."""


class OutsideProgramError(FluidError, RuntimeError):
    """A layer was called while no program function was running."""


class ProgramError(FluidError, ValueError):
    """A program function cannot be used: it returns nothing, its loss is not a scalar, or a name is used twice."""


class ArgumentError(FluidError, ValueError):
    """An argument has an invalid value."""


class ArgumentTypeError(FluidError, TypeError):
    """An argument has an invalid type."""


class ShapeError(FluidError, ValueError):
    """A layer was given arrays whose shapes do not fit together."""


class FeedError(FluidError, ValueError):
    """Data does not fit the declarations of the program."""


class FeedTypeError(FeedError, TypeError):
    """Data has a dtype that would lose information or mean nothing for its field."""


class UnknownNameError(FluidError, KeyError):
    """No feed, parameter, state or named value has that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would show the repr, in quotes


class MissingNameError(FluidError, AttributeError):
    """A module or an object of fluid has no attribute of that name, or the attribute cannot be set."""


class ParameterError(FluidError, ValueError):
    """Parameters do not match the program: names are missing or extra, or a name has two shapes."""


class ReaderError(FluidError, ValueError):
    """A reader yields no data, or an item that is not a minibatch."""


class EOFException(FluidError, EOFError):
    """A reader that feeds a program of `fluid.static` is at its end; the name is Fluid's."""


class ParameterFileError(FluidError, OSError):
    """A parameter file is missing, damaged, or of another format."""


class CheckpointError(FluidError, OSError):
    """A checkpoint folder cannot be used: another trainer writes to it, it is missing, or no checkpoint is whole."""


class ArtifactError(FluidError, OSError):
    """An exported model cannot be written, is missing, damaged or of a newer version, or cannot run on this device."""


class ProtocolError(FluidError, ValueError):
    """A message between a server and a client is not one of the Open Inference Protocol."""


class RemoteError(FluidError, ConnectionError):
    """A server does not answer, or refuses a request that a client sent."""


class OnlineError(FluidError, RuntimeError):
    """An OnlineTrainer cannot do the requested call in its present state."""


class JournalError(OnlineError, OSError):
    """The journal of an OnlineTrainer is damaged, in use by another OnlineTrainer, or cannot be written."""


class JournalFullError(JournalError):
    """The journal of an OnlineTrainer is full until more rows are trained on. Send the rows again later."""


class NonFiniteError(FluidError, FloatingPointError):
    """Training produced an infinity or a NaN. `report` names the origin, if the report was requested.

    Attributes:
      report: a `fluid.handlers.NonFiniteReport`, or None.
    """

    def __init__(self, message: str, report: Any = None):
        super().__init__(message)
        self.report = report


class DistributedError(FluidError, RuntimeError):
    """Several processes do not work together: a process does not join, has failed, or runs a different computation."""


class DeviceError(FluidError, RuntimeError):
    """This machine does not have the requested device."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known name nearest to a mistyped name.

    Args:
      name: the mistyped name.
      known: all existing names.

    Returns:
      A sentence to append to a message, with the nearest name, or else with the known names (at most twelve).

    Example:
      >>> nearest("imge", ["image", "label"])
      "Did you mean 'image'?"
      >>> nearest("x", ["image", "label"])
      "Known names: 'image', 'label'."
    """
    names = [str(n) for n in known]
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    if not names:
        return "There are none."
    shown = ", ".join(repr(n) for n in names[:12])
    return f"Known names: {shown}{', ...' if len(names) > 12 else ''}."


def missing_name(owner: str, name: str, known: Iterable[str], advice: str = "") -> MissingNameError:
    """Return the error for a name that a module or an object does not have.

    Args:
      owner: the module or object, such as "module 'fluid.layers'".
      name: the missing name.
      known: all existing names.
      advice: the advice for the message; empty to suggest the nearest existing name.

    Example:
      >>> raise missing_name("module 'fluid.layers'", "Dense", ["fc"], "use layers.fc(x, size=10)")
      Traceback (most recent call last):
        ...
      fluid.errors.MissingNameError: module 'fluid.layers' has no attribute 'Dense'; use layers.fc(x, size=10)
    """
    found = f"{owner} has no attribute {name!r}"
    if advice:
        return MissingNameError(f"{found}; {advice}", name=name)
    names = list(known)
    same = [known for known in names if _plain(known) == _plain(name)]
    close = same or difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return MissingNameError(found + (f". Did you mean {close[0]!r}?" if close else ""), name=name)


def _plain(name: str) -> str:
    """Return a name in lower case without underscores, so that AUC equals Auc, and batchNorm equals batch_norm."""
    return name.replace("_", "").lower()
