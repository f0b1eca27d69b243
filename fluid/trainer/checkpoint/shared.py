"""A check that all processes see one folder of checkpoints."""

import secrets

from fluid import errors
from fluid.distributed import Group
from fluid.storage.folder import Folder


def check_shared(folder: Folder, group: Group) -> None:
    """Check that all processes share a folder: each process must see a token file of the first process.

    Raises:
      CheckpointError: a process has another folder, or several processes use an object store.
    """
    if group.size == 1:
        return
    if not folder.is_local:
        raise errors.CheckpointError(
            f"{group.size} processes cannot keep checkpoints in {folder.name!r}: of a store only one process writes "
            f"them. Expected a folder that all processes share, such as one on a network file system"
        )
    token = folder.path / f"{group.of_first('the name of a token', secrets.token_hex(8))}.token"
    if group.is_first:
        token.touch()
    group.meet("the folder of checkpoints")
    seen = group.exchange("who sees the folder of checkpoints", token.exists())
    if group.is_first:
        token.unlink(missing_ok=True)
    if not all(seen):
        raise errors.CheckpointError(
            f"the folder of checkpoints, {folder.name!r}, is another one in process "
            f"{', '.join(str(i) for i, found in enumerate(seen) if not found)} than in process 0; expected a folder "
            f"that all processes share, such as one on a network file system"
        )
