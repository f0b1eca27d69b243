"""The models of a server: their versions, loaded, compiled and run."""

import logging
import pathlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fluid import artifact, errors
from fluid.artifact import ExportedProgram
from fluid.inferencer import Inferencer
from fluid.paths import local_path
from fluid.place import Place
from fluid.runtime import Session
from fluid.runtime.seeds import Seeds
from fluid.serving.batching import Batcher, Job, Values
from fluid.serving.metrics import Metrics
from fluid.serving.runner import Runner
from fluid.serving.settings import Settings
from fluid.storage import instead

LOG = logging.getLogger("fluid.serving")
_FILE = "model.fluid"
_NUMBER = re.compile("[1-9][0-9]{0,17}", re.ASCII)
_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,128}", re.ASCII)  # a segment of a URL: clients resolve "." and ".."


class Version:
    """One version of a model.

    Args:
      model: its name.
      version: its number.
      session: which has the arrays.
      program: what it computes.
      settings: how to batch.
      metrics: where its batches are counted.
      seeds: of requests that name none; None draws a seed from the system.

    Attributes:
      ready: whether it answers.
    """

    def __init__(
        self,
        model: str,
        version: str,
        session: Session,
        program: Any,
        settings: Settings,
        metrics: Metrics,
        seeds: Seeds | None = None,
    ):
        self.model = model
        self.version = version
        self.ready = False
        self.runner = Runner(session, program, settings, model, seeds)
        self._metrics = metrics
        self.batcher = Batcher(
            self._run,
            self.runner.max_rows,
            settings.max_delay_ms / 1000,
            settings.max_queue,
            self._failed,
            self.runner.choose,
        )

    def warm_up(self) -> None:
        """Compile it; it is ready then."""
        self.runner.warm_up()
        self.ready = True
        LOG.info("model %s version %s is ready, %d compilations", self.model, self.version, self.runner.compilations)

    def close(self) -> None:
        """Answer what waits, and end."""
        self.ready = False
        self.batcher.close()

    def _run(self, jobs: Sequence[Job]) -> list[Values]:
        self._metrics.ran(self.model, self.version, sum(job.rows for job in jobs))
        return self.runner.run(jobs)

    def _failed(self, error: Exception) -> None:
        LOG.error("model %s version %s failed", self.model, self.version, exc_info=error)


class Models:
    """All models of a server, by name; of each one or several versions.

    Args:
      sources: by name: the file of `trainer.save_inference_model`, a folder of versions as in `models/digits/3`, or an
        Inferencer. A file with several entry points is a model for each: "translator.encode".
      settings: how to batch.
      metrics: where batches are counted.
      place: a device, see `fluid.place.device_of`.

    Raises:
      ArtifactError: a file is missing or damaged.
      ArgumentError: a name cannot stand in a URL.
    """

    def __init__(self, sources: Mapping[str, Any], settings: Settings, metrics: Metrics, place: Place = None):
        if not sources:
            raise errors.ArgumentError('there is no model to serve: fluid.serve({"digits": "digits.fluid"})')
        self._settings, self._metrics, self._place = settings, metrics, place
        self._versions: dict[str, dict[str, Version]] = {}
        self._folders: dict[str, pathlib.Path] = {}
        self._made: dict[str, list[str]] = {}  # the models of each source
        self._refused: dict[str, tuple[int, int]] = {}
        self._away: dict[str, str] = {}  # why a folder cannot be read
        self._lock = threading.Lock()
        for name, source in sources.items():
            _check_name(name)
            found = self._first(name, source)
            self._check_models(name, found)
            self._versions |= {version.model: {version.version: version} for version in found}
            self._made[name] = [version.model for version in found]

    @property
    def ready(self) -> bool:
        """Whether every model answers."""
        return all(any(v.ready for v in versions.values()) for versions in self._versions.values())

    def names(self) -> list[str]:
        """The names of the models."""
        return list(self._versions)

    def __iter__(self) -> Iterator[Version]:
        with self._lock:
            return iter([v for versions in self._versions.values() for v in versions.values()])

    def versions(self, name: str) -> list[str]:
        """The versions of a model, the newest last.

        Raises:
          UnknownNameError: there is no such model.
        """
        return sorted(self._of(name), key=int)

    def find(self, name: str, version: str | None = None) -> Version:
        """A version of a model; without a number the newest that is ready.

        Raises:
          UnknownNameError: there is no such model or version.
        """
        found = self._of(name)
        if version is None:
            ready = [v for v in found.values() if v.ready]
            return max(ready or found.values(), key=lambda v: int(v.version))
        if version not in found:
            raise errors.UnknownNameError(
                f"the model {name!r} has no version {version[:60]!r}. {errors.nearest(version[:60], found)}"
            )
        return found[version]

    def warm_up(self) -> None:
        """Compile all models, one after the other."""
        for version in self:
            version.warm_up()

    def reload(self) -> bool:
        """Take over versions that are new in a folder; the version before answers until the new one is ready.

        A file that cannot be loaded is reported once, and tried again when it has changed.

        Returns:
          Whether there were any.
        """
        replaced = False
        for name, folder in self._folders.items():
            try:
                numbers = _numbers(folder)
                self._away.pop(name, None)
            except OSError as error:
                if self._away.get(name) != str(error):
                    LOG.error("the versions of the model %s cannot be looked for: %s; its version goes on", name, error)
                self._away[name] = str(error)
                continue
            served = max(int(version) for model in self._made[name] for version in self._versions[model])
            for number in reversed([number for number in numbers if number > served]):
                found = self._newer(name, number, folder / str(number))
                if found is not None:
                    self._replace(name, found)
                    replaced = True
                    break
        return replaced

    def close(self) -> None:
        """Answer what waits, and end."""
        for version in self:
            version.close()

    def _of(self, name: str) -> dict[str, Version]:
        found = self._versions.get(name)
        if found is None:
            raise errors.UnknownNameError(
                f"there is no model {name[:60]!r} here. {errors.nearest(name[:60], self._versions)}"
            )
        return found

    def _newer(self, name: str, number: int, path: pathlib.Path) -> list[Version] | None:
        """Load a version; None where it cannot be served, so that an older one is tried."""
        found: list[Version] = []
        try:
            mark = (path / _FILE).stat()
            stamp = (mark.st_mtime_ns, mark.st_size)
            if self._refused.get(str(path)) == stamp:
                return None
            self._refused[str(path)] = stamp
            found = self._load(name, str(number), path)
            self._check_models(name, found)
            for version in found:
                version.warm_up()
        except Exception as error:  # whatever is wrong with it, the version before goes on
            LOG.error("version %d of the model %s is not served: %s", number, name, error)
            for version in found:
                version.close()
            return None
        return found

    def _check_models(self, name: str, found: list[Version]) -> None:
        """Refuse entries of a file that are called like another model, or in another way than a part of a URL."""
        others = {model for source, models in self._made.items() if source != name for model in models}
        for version in found:
            _check_name(version.model)
            if version.model in others:
                raise errors.ArgumentError(
                    f"two models are called {version.model!r}, one of them of {name!r}: give another name"
                )

    def _replace(self, name: str, found: list[Version]) -> None:
        before: list[Version] = []
        with self._lock:
            self._made[name] = sorted({*self._made[name], *(version.model for version in found)})
            for version in found:
                before += self._versions.get(version.model, {}).values()
                self._versions[version.model] = {version.version: version}
        for version in before:
            version.close()

    def _first(self, name: str, source: Any) -> list[Version]:
        if isinstance(source, Inferencer):
            if source.remote is not None:
                raise errors.ArgumentError(f"the model {name!r} is at {source.remote.url} already; give a file of it")
            return [Version(name, "1", source.session, source.program, self._settings, self._metrics, source.seeds)]
        path = local_path(source, errors.ArtifactError)
        if path.is_dir() and not (path / _FILE).is_file():
            self._folders[name] = path
            numbers = _numbers(path)
            if not numbers:
                raise errors.ArtifactError(
                    instead(path, "exported")
                    or f"no exported model in {str(path)!r}; expected model.fluid there, or versions as in "
                    f"1/model.fluid"
                )
            return self._load(name, str(max(numbers)), path / str(max(numbers)))
        return self._load(name, "1", path)

    def _load(self, name: str, version: str, path: pathlib.Path) -> list[Version]:
        found = artifact.load(path)
        programs = {entry: found.program(entry, self._place) for entry in found.entries}
        return [
            self._version(f"{name}.{entry}" if len(programs) > 1 else name, version, program)
            for entry, program in programs.items()
        ]

    def _version(self, model: str, version: str, program: ExportedProgram) -> Version:
        session = Session(program, place=self._place)
        return Version(model, version, session, program, self._settings, self._metrics)


def _numbers(folder: pathlib.Path) -> list[int]:
    """The versions in a folder that are there as a whole."""
    names = [path.name for path in folder.iterdir() if _NUMBER.fullmatch(path.name)]
    return sorted(int(name) for name in names if (folder / name / _FILE).is_file())


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise errors.ArgumentError(
            f"found the model name {name!r}; expected at most 128 letters, digits and . _ -, "
            f"and neither . nor .., as it is a part of URLs: digits=FILE"
        )
