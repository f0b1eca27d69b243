"""The models of a server: load and compile them, run them with a Batcher, and replace them by newer versions."""

import logging
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fluid import errors
from fluid._util.paths import local_path
from fluid.checkpoint import instead
from fluid.inferencer import Inferencer
from fluid.place import Place
from fluid.runtime import Session
from fluid.runtime.seeds import Seeds
from fluid.serving.batching import Batcher, Job, Runner, Values
from fluid.serving.settings import Settings

LOG = logging.getLogger("fluid.serving")
FILE = "model.fluid"
NUMBER = re.compile("[1-9][0-9]{0,17}", re.ASCII)
# The pattern of model names. It excludes "." and "..", because clients resolve them as parts of a URL path.
_NAME = re.compile(r"(?!\.\.?$)[A-Za-z0-9._-]{1,128}", re.ASCII)


class Version:
    """One version of a model, with its Batcher.

    Attributes:
      ready: True if this version is compiled and not closed.
    """

    def __init__(
        self,
        source: str,
        model: str,
        version: str,
        session: Session,
        program: Any,
        settings: Settings,
        count_batch: Callable[[str, str, int], None],
        finished: Callable[[Sequence[Job]], None],
        seeds: Seeds | None = None,
    ):
        self.source, self.model, self.version = source, model, version
        self.ready = False
        self.runner = Runner(session, program, settings, model, seeds)
        self._count_batch = count_batch
        self.batcher = Batcher(
            self._run,
            self.runner.max_rows,
            settings.max_delay_ms / 1000,
            settings.max_queue,
            self._failed,
            self.runner.choose,
            finished,
        )

    def warm_up(self) -> None:
        """Compile this version of a model for all batch sizes; then set `ready`."""
        self.runner.warm_up()
        self.ready = True
        LOG.info("model %s version %s is ready, %d compilations", self.model, self.version, self.runner.compilations)

    def close(self) -> None:
        """Run all waiting jobs of this model version, and stop its Batcher."""
        self.ready = False
        self.batcher.close()

    def _run(self, jobs: Sequence[Job]) -> list[Values]:
        self._count_batch(self.model, self.version, sum(job.rows for job in jobs))
        return self.runner.run(jobs)

    def _failed(self, error: Exception) -> None:
        LOG.error("model %s version %s failed", self.model, self.version, exc_info=error)


class Models:
    """All models of a server by name, with one served version of each.

    Args:
      sources: a dict by name: a file of `trainer.save_inference_model`, a folder of versions such as `models/digits/3`,
        or an Inferencer. A file with several entry points has a model for each, such as "translator.encode".

    Raises:
      ArtifactError: a file is missing or damaged.
      ArgumentError: the name of a model has characters that are not allowed.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        settings: Settings,
        count_batch: Callable[[str, str, int], None],
        finished: Callable[[Sequence[Job]], None],
        place: Place = None,
    ):
        if not sources:
            raise errors.ArgumentError('there is no model to serve: fluid.serve({"digits": "digits.fluid"})')
        self._options = (settings, count_batch, finished)
        self._place = place
        self._versions: dict[str, Version] = {}
        self._folders: dict[str, pathlib.Path] = {}
        # for each version folder: the modification time and size of the model file that `reload` has tried to load
        self._tried: dict[pathlib.Path, tuple[int, int]] = {}
        # for each model whose folder of versions cannot be read: the error message, by the name of the model
        self._unreadable: dict[str, str] = {}
        for name, source in sources.items():
            _check_name(name)
            found = self._first(name, source)
            self._check_models(name, found)
            self._versions |= {version.model: version for version in found}

    @property
    def ready(self) -> bool:
        """True if every model is compiled, and no model is closed."""
        return all(version.ready for version in self)

    def names(self) -> list[str]:
        """Return the names of the models."""
        return list(self._versions)

    def __iter__(self) -> Iterator[Version]:
        # Another thread may replace a model during the iteration. The iteration stays valid, because each replacement
        # creates a new dict of models.
        return iter(self._versions.values())

    def find(self, name: str, version: str | None = None) -> Version:
        """Return the served version of a model.

        Raises:
          UnknownNameError: there is no such model or version.
        """
        found = self._versions.get(name)
        if found is None:
            raise errors.UnknownNameError(
                f"there is no model {name[:60]!r} here. {errors.nearest(name[:60], self._versions)}"
            )
        if version is not None and version != found.version:
            raise errors.UnknownNameError(
                f"the model {name!r} has no version {version[:60]!r}. {errors.nearest(version[:60], [found.version])}"
            )
        return found

    def warm_up(self) -> None:
        """Compile all models, one after the other."""
        for version in self:
            version.warm_up()

    def reload(self) -> bool:
        """Replace models by newer versions from their folders; an old version serves until the new one is compiled.

        A file that cannot be loaded is logged once, and is loaded again only after it has changed.
        """
        replaced = False
        for name, folder in self._folders.items():
            try:
                numbers = version_numbers(folder)
                self._unreadable.pop(name, None)
            except OSError as error:
                if self._unreadable.get(name) != str(error):
                    LOG.error("the versions of the model %s cannot be looked for: %s; its version goes on", name, error)
                self._unreadable[name] = str(error)
                continue
            served = max(int(version.version) for version in self if version.source == name)
            for number in reversed([number for number in numbers if number > served]):
                if found := self._load_newer(name, number, folder / str(number)):
                    self._replace(found)
                    replaced = True
                    break
        return replaced

    def close(self) -> None:
        """Run all waiting jobs of all models, and stop their Batchers."""
        for version in self:
            version.close()

    def _load_newer(self, name: str, number: int, path: pathlib.Path) -> list[Version]:
        """Load and compile the models of a newer version; return an empty list if any of the models fails."""
        found: list[Version] = []
        try:
            stat = (path / FILE).stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if self._tried.get(path) == stamp:
                return []
            self._tried[path] = stamp
            found = self._load(name, str(number), path)
            self._check_models(name, found)
            for version in found:
                version.warm_up()
        except Exception as error:  # only log the error: the server continues with the earlier version of the model
            LOG.error("version %d of the model %s is not served: %s", number, name, error)
            for version in found:
                version.close()
            return []
        return found

    def _check_models(self, source: str, found: list[Version]) -> None:
        """Check that the name of each model is valid in a URL, and that no other source has a model of this name."""
        for version in found:
            _check_name(version.model)
            if version.model in self._versions and self._versions[version.model].source != source:
                raise errors.ArgumentError(
                    f"two models are called {version.model!r}, one of them of {source!r}: give another name"
                )

    def _replace(self, found: list[Version]) -> None:
        old = [self._versions[version.model] for version in found if version.model in self._versions]
        self._versions = self._versions | {version.model: version for version in found}
        for version in old:
            version.close()

    def _first(self, name: str, source: Any) -> list[Version]:
        """Load the models of a file, a folder (its newest version) or an Inferencer, when the server starts."""
        if isinstance(source, Inferencer):
            if source.remote is not None:
                raise errors.ArgumentError(f"the model {name!r} is at {source.remote.url} already; give a file of it")
            return [Version(name, name, "1", source.session, source.program, *self._options, source.seeds)]
        path = local_path(source, errors.ArtifactError)
        if not path.is_dir() or (path / FILE).is_file():
            return self._load(name, "1", path)
        self._folders[name] = path
        numbers = version_numbers(path)
        if not numbers:
            raise errors.ArtifactError(
                instead(path, "exported")
                or f"no exported model in {str(path)!r}; expected model.fluid there, or versions as in 1/model.fluid"
            )
        return self._load(name, str(numbers[-1]), path / str(numbers[-1]))

    def _load(self, name: str, version: str, path: pathlib.Path) -> list[Version]:
        """Load an exported file, and return one model version for each entry point in it."""
        from fluid import export  # imported only when needed: the import takes 0.1 s, and some commands load no model

        exported = export.load(path)
        programs = {entry: exported.program(entry, self._place) for entry in exported.entries}
        names = {entry: f"{name}.{entry}" if len(programs) > 1 else name for entry in programs}
        return [
            Version(name, names[entry], version, Session(program, place=self._place), program, *self._options)
            for entry, program in programs.items()
        ]


def version_numbers(folder: pathlib.Path) -> list[int]:
    """Return, in increasing order, the numbers of the versions in `folder` that have a model file."""
    names = [path.name for path in folder.iterdir() if NUMBER.fullmatch(path.name)]
    return sorted(int(name) for name in names if (folder / name / FILE).is_file())


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise errors.ArgumentError(
            f"found the model name {name!r}; expected at most 128 letters, digits and . _ -, "
            f"and neither . nor .., as it is a part of URLs: digits=FILE"
        )
