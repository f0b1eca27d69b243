"""The first step of a training, which is compiled while its first minibatch is read."""

import contextlib
from collections.abc import Sequence

from fluid.reader.pipeline import Batch
from fluid.trainer.asking import AskableStep
from fluid.trainer.dispatch.together import Together
from fluid.trainer.programs import Member, Source, Turns


def compile_ahead(members: Sequence[Member], steps: Sequence[AskableStep], source: Source, together: Together) -> None:
    """Begin to compile the step of a program, if its reader says which shapes it will be fed with.

    A reader says so that has a `batch_size`, of a program whose data has fixed shapes. Otherwise, and where the first
    call may have several steps, the step is compiled when its first minibatch is there.

    Args:
      members: the programs.
      steps: the step of each.
      source: what is going to be read.
      together: how many steps run in one call of the device.
    """
    if len(members) > 1 or isinstance(source, Turns) or steps[0].compiled or not source.batch_size:
        return
    feed = members[0].expected(source)
    if feed is None or together.room(members[0].program, Batch(feed, examples=source.batch_size)) > 1:
        return
    with contextlib.suppress(Exception):  # a mistake in the program is said by its first step, as ever
        steps[0].compile_ahead(feed)
