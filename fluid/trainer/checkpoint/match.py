"""Checks: whether a checkpoint matches the program and the optimizers of a Trainer, with messages about differences."""

import importlib.metadata
import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fluid._util.text import described
from fluid.checkpoint import Source
from fluid.core import Program
from fluid.runtime import Session
from fluid.runtime.state_io import check_state

log = logging.getLogger("fluid")


def describe_optimizers(programs: Sequence[Program]) -> list[str]:
    """Return a text with the class and the settings of each optimizer of some programs, equal in every process.

    Args:
      programs: the programs of a Trainer or a Session.

    Returns:
      One text for each `minimize`, such as "SGD(learning_rate=0.1)".

    Example:
      >>> import fluid
      >>> def program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.optimizer.Momentum(0.1, momentum=0.8).minimize(loss)
      ...     return loss
      >>> describe_optimizers([fluid.Program(program)])
      ['Momentum(learning_rate=0.1, momentum=0.8)']
    """
    return [described(minimize.optimizer) for program in programs for minimize in program.minimizes]


def digests_of(programs: Sequence[Program]) -> list[str]:
    """Return the `Program.digest` of each program, a checksum of the equations that compute its losses."""
    return [program.digest for program in programs]


def check_seed(saved: Any, session: Session, where: str) -> None:
    """Log a warning if the seed of a session differs from the seed in a checkpoint.

    Args:
      saved: the random root in the checkpoint, the key from which all its random numbers are drawn.
      session: the session before it is restored.
      where: the checkpoint in words, for the message.
    """
    if not np.array_equal(np.asarray(saved), np.asarray(session.scope.root)):
        log.warning("%s: the seed was another one than now; training continues with the seed of the checkpoint", where)


def check_checkpoint(meta: Mapping[str, Any], session: Session, programs: Sequence[Program], where: str) -> None:
    """Raise ParameterError for a checkpoint of another program or optimizer; log a warning for lesser differences.

    Lesser differences are other settings of the optimizers, and another computation of the losses with the same
    parameters. The data is not compared.

    Args:
      meta: the metadata of the checkpoint.
      session: the session of the Trainer.
      programs: the programs of the Trainer.
      where: the checkpoint in words, for messages.

    Raises:
      ParameterError: names, shapes or dtypes differ, or the table of raw rows.
    """
    found = {n: SimpleNamespace(shape=tuple(a["shape"]), dtype=a["dtype"]) for n, a in meta["arrays"].items()}
    before = meta.get("optimizers")
    now = describe_optimizers(programs)
    changed = (
        "" if before in (None, now) else f"{' and '.join(before)} when it was written, and {' and '.join(now)} now"
    )
    same_parameters = _parameters(found) == _parameters(session.state())
    advice = _OTHER_OPTIMIZER.format(changed or "another one than now") if same_parameters else _OTHER_PROGRAM
    check_state(session, found, where, advice, meta.get("sites") or {})
    Source({}, where, table=meta.get("table")).check_table(session.table)
    if changed:
        log.warning("%s: the optimizer was %s; training continues with the settings of now", where, changed)
    digests = meta.get("digests")
    # A digest is of equations as JAX prints them, so digests of two versions of JAX are not compared.
    same_jax = meta.get("versions", {}).get("jax") == importlib.metadata.version("jax")
    if same_jax and digests not in (None, digests_of(programs)):
        log.warning(
            "%s: the program computes its loss in another way than when it was written, with the same parameters; "
            "training continues with the program of now",
            where,
        )


_OPTIMIZERS = ("@slots/", "@learning_rate/", "@frozen")
_OTHER_PROGRAM = (
    "the program function is another one than that which was trained; to train this one from the beginning, use "
    "another checkpoint_dir"
)
_OTHER_OPTIMIZER = (
    "the parameters are those of this program, but not the slots of its optimizer: it was {}. Use the optimizer of the "
    "checkpoint; or keep its parameters only: trainer.save_params(path) of a Trainer with that optimizer, then "
    "fluid.Trainer(program, new_optimizer, param_path=path) with another checkpoint_dir"
)


def _parameters(arrays: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and dtype of each array that does not belong to an optimizer, by name."""
    return {n: (tuple(a.shape), str(a.dtype)) for n, a in arrays.items() if not n.startswith(_OPTIMIZERS)}
