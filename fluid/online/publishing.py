"""Publishing: exported models as versions in a folder, from which a running server loads the newest version."""

import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid._util.paths import local_path
from fluid.checkpoint.atomic import sync
from fluid.serving.models import FILE, NUMBER, version_numbers
from fluid.trainer import Trainer

_TEMPORARY = re.compile(rf"\.{NUMBER.pattern}\.writing", re.ASCII)


class Publisher:
    """A writer of versions: `FOLDER/120/model.fluid` is the model after 120 training steps.

    A version is written under another name and then renamed, so that readers find a whole version or none.

    Args:
      folder: the folder of the versions; created with the first version.
      options: options of `Trainer.save_inference_model`, such as `fetch`.

    Attributes:
      folder: the folder of the versions.
    """

    def __init__(self, folder: Any, options: Mapping[str, Any]):
        self.folder = local_path(folder)
        self._options = dict(options)

    @property
    def newest(self) -> int | None:
        """Number of the newest complete version in the folder, or None if there is none."""
        return max(version_numbers(self.folder), default=None) if self.folder.is_dir() else None

    def publish(self, trainer: Trainer, steps: int) -> None:
        """Write the model as a version; if this version exists already, do nothing.

        Args:
          trainer: the Trainer of the model.
          steps: number of training steps done, which becomes the number of the version.

        Raises:
          OnlineError: nothing was trained yet, or the folder has a newer version.
          ArtifactError: the program cannot be exported, or the file cannot be written.
        """
        newest = self.newest or 0
        if steps == 0 or newest > steps:
            found = "nothing was trained yet" if steps == 0 else f"{str(self.folder)!r} has the version {newest}"
            raise errors.OnlineError(
                f"{found}, and versions count training steps, of which {steps} are done; servers take over newer ones "
                f"only. Train first, or publish to another folder"
            )
        if newest == steps:
            return
        try:
            self._write(trainer, steps)
        except errors.FluidError:  # first, because some FluidErrors are OSErrors too
            raise
        except OSError as error:
            raise errors.ArtifactError(f"cannot publish to {str(self.folder)!r}: {error.strerror}") from error

    def _write(self, trainer: Trainer, steps: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.iterdir():  # remove the unfinished versions of killed processes
            if _TEMPORARY.fullmatch(left.name):
                shutil.rmtree(left)
        temporary = self.folder / f".{steps}.writing"
        temporary.mkdir()
        try:
            trainer.save_inference_model(temporary / FILE, **self._options)
            sync(temporary)
            os.rename(temporary, self.folder / str(steps))
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(self.folder)
