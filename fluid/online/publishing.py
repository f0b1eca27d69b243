"""Publishing: exported models as versions in a folder, of which a running server takes over the newest."""

import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

from fluid import errors
from fluid.paths import local_path
from fluid.storage.atomic import sync
from fluid.trainer import Trainer

_FILE = "model.fluid"
_NUMBER = re.compile("[1-9][0-9]{0,17}", re.ASCII)
_LEFT = re.compile(rf"\.{_NUMBER.pattern}\.writing", re.ASCII)


class Publisher:
    """Writes versions: `FOLDER/120/model.fluid` is what was there after 120 training steps.

    A version is written under another name and then renamed, so whoever looks finds all of it or nothing.

    Args:
      folder: of the versions; made when the first one is written.
      options: of `Trainer.save_inference_model`, such as `fetch`.

    Attributes:
      folder: the same.
    """

    def __init__(self, folder: Any, options: Mapping[str, Any]):
        self.folder = local_path(folder)
        self._options = dict(options)

    @property
    def newest(self) -> int | None:
        """The newest version that is there as a whole."""
        if not self.folder.is_dir():
            return None
        names = (path.name for path in self.folder.iterdir() if _NUMBER.fullmatch(path.name))
        return max((int(name) for name in names if (self.folder / name / _FILE).is_file()), default=None)

    def publish(self, trainer: Trainer, steps: int) -> None:
        """Write a version; one that is there already stays as it is.

        Args:
          trainer: what is written.
          steps: training steps that it has done, which is the number of the version.

        Raises:
          OnlineError: there is nothing yet, or a newer version of something else.
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
        except errors.FluidError:  # of which some are OSErrors
            raise
        except OSError as error:
            raise errors.ArtifactError(f"cannot publish to {str(self.folder)!r}: {error.strerror}") from error

    def _write(self, trainer: Trainer, steps: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.iterdir():  # by a process that was killed
            if _LEFT.fullmatch(left.name):
                shutil.rmtree(left)
        temporary = self.folder / f".{steps}.writing"
        temporary.mkdir()
        try:
            trainer.save_inference_model(temporary / _FILE, **self._options)
            sync(temporary)
            os.rename(temporary, self.folder / str(steps))
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(self.folder)
