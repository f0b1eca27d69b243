"""Errors: every exception that fluid raises on purpose.

    FluidError
    |-- OutsideProgramError  (RuntimeError)  a layer was called while no program function runs
    |-- ProgramError         (ValueError)    a program function is invalid
    |-- ArgumentError        (ValueError)    an argument has an invalid value
    |-- ArgumentTypeError    (TypeError)     an argument has an invalid type
    |-- ShapeError           (ValueError)    a layer got arrays whose shapes do not match
    |-- FeedError            (ValueError)    data does not match the feeds of the program
    |   `-- FeedTypeError    (TypeError)     ... because of its dtype
    |-- UnknownNameError     (KeyError)      no feed, parameter or value has that name
    |-- MissingNameError     (AttributeError)  a module or an object of fluid has no such attribute to read or to set
    |-- ParameterError       (ValueError)    parameters do not match the program
    |-- ReaderError          (ValueError)    a reader yields no data, or an invalid minibatch
    |-- EOFException         (EOFError)      a reader that feeds a program is at its end
    |-- ParameterFileError   (OSError)       a parameter file is missing or of another format
    |-- CheckpointError      (OSError)       a checkpoint folder is in use, damaged or missing
    |-- ArtifactError        (OSError)       an exported model cannot be written, read or run
    |-- ProtocolError        (ValueError)    a message violates the Open Inference Protocol
    |-- RemoteError          (ConnectionError)  a server does not answer, or refuses
    |-- OnlineError          (RuntimeError)  an OnlineTrainer cannot do the call in its present state
    |   `-- JournalError     (OSError)       ... because its journal is damaged, in use or cannot be written
    |       `-- JournalFullError             ... or is full until more rows are trained on
    |-- NonFiniteError       (FloatingPointError)  training produced an infinity or a NaN
    |-- DistributedError     (RuntimeError)  the processes of a multi-process run do not work together
    `-- DeviceError          (RuntimeError)  this machine does not have the requested device

Each class also derives from the built-in exception that a Python user would catch. An error message says what was
found, what was expected, and which call is correct.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class FluidError(Exception):
    """Base class of every error that fluid raises on purpose."""


class FluidWarning(UserWarning):
    """The class of all warnings of fluid: a call works, but is slow, or the user probably intended another call."""


class OutsideProgramError(FluidError, RuntimeError):
    """The error for a layer that is called while no program function runs."""


class ProgramError(FluidError, ValueError):
    """The error for an invalid program function: it returns nothing, its loss is no scalar, or a name repeats."""


class ArgumentError(FluidError, ValueError):
    """The error for an argument with an invalid value."""


class ArgumentTypeError(FluidError, TypeError):
    """The error for an argument with an invalid type."""


class ShapeError(FluidError, ValueError):
    """The error for a layer whose input arrays have shapes that do not match."""


class FeedError(FluidError, ValueError):
    """The error for data that does not match the feeds that the program declares."""


class FeedTypeError(FeedError, TypeError):
    """The error for data of a wrong dtype: a conversion to the dtype of the feed would lose information or meaning."""


class UnknownNameError(FluidError, KeyError):
    """The error for a name that no feed, parameter, state or value has."""

    def __str__(self) -> str:
        # KeyError.__str__ would return the repr of the message, in quotes
        return str(self.args[0]) if self.args else ""


class MissingNameError(FluidError, AttributeError):
    """The error for an attribute that a module or object of fluid does not have, or that cannot be set."""


class ParameterError(FluidError, ValueError):
    """The error for parameters that do not match the program: names are missing or extra, or a name has two shapes."""


class ReaderError(FluidError, ValueError):
    """The error for a reader that yields no data, or an item that is not a minibatch."""


class EOFException(FluidError, EOFError):
    """The error at the end of a reader that feeds a program of `fluid.static`; its name comes from Fluid."""


class ParameterFileError(FluidError, OSError):
    """The error for a parameter file that is missing, damaged, or of another format."""


class CheckpointError(FluidError, OSError):
    """The error for a checkpoint folder that is missing or in use, or that has no complete checkpoint."""


class ArtifactError(FluidError, OSError):
    """The error for an exported model that is missing, damaged or of a newer version, or cannot be written or run."""


class ProtocolError(FluidError, ValueError):
    """The error for a message between server and client that violates the Open Inference Protocol."""


class RemoteError(FluidError, ConnectionError):
    """The error for a server that does not answer, or that refuses a request."""


class OnlineError(FluidError, RuntimeError):
    """The error for a call that an OnlineTrainer cannot execute in its present state."""


class JournalError(OnlineError, OSError):
    """The error for an OnlineTrainer's journal (its database of rows) that is damaged, in use or not writable."""


class JournalFullError(JournalError):
    """The error for an OnlineTrainer whose journal (a database of rows) is full; send the rows again later."""


class NonFiniteError(FluidError, FloatingPointError):
    """The error for a training that produced an infinity or a NaN.

    Attributes:
      report: a `fluid.handlers.NonFiniteReport`, which names the first non-finite value; None if no report was made.
    """

    def __init__(self, message: str, report: Any = None):
        super().__init__(message)
        self.report = report


class DistributedError(FluidError, RuntimeError):
    """The error for multi-process runs: a process does not join, has failed, or runs a different computation."""


class DeviceError(FluidError, RuntimeError):
    """The error for a requested device that this machine does not have."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known name most similar to a mistyped name.

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
    """Return the MissingNameError for an attribute that a module or an object does not have.

    Args:
      owner: the module or object, such as "module 'fluid.layers'".
      name: the missing name.
      known: all existing names.
      advice: the advice for the message; if empty, the message suggests the most similar existing name.

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
    return name.replace("_", "").lower()
