"""The class OnlineTrainer, which trains a program on rows as they arrive, and loses no accepted row."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pathlib
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fluid import errors
from fluid._util.known_names import KnownAttributes
from fluid._util.paths import PathLike, local_path
from fluid.checkpoint import recognized
from fluid.checkpoint.folder import Folder
from fluid.core import fitting, whole_number
from fluid.online.journal import Accepted, Journal
from fluid.online.minibatches import JournalMinibatches, Split
from fluid.online.publishing import MovingTest, Publisher
from fluid.online.rows import Packed, RowFormat
from fluid.online.training_thread import Control
from fluid.optimizer.base import OptimizerLike
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.serving import protocol
from fluid.serving.server import HTTPServer, checked_settings
from fluid.serving.settings import Settings
from fluid.trainer import CheckpointConfig, Trainer
from fluid.trainer.evaluation.means import finite, number
from fluid.trainer.handlers import Handlers, listed

LOG = logging.getLogger("fluid.online")
_KEPT = 3  # the number of newest checkpoints to keep
_LONGEST_KEY = 128
# The time, in seconds, that `send_all` waits while the journal (the waiting rows on disk) is full. After this time,
# `send_all` checks that the training still runs.
_PATIENCE = 1.0
Note = tuple[str, str] | None


class OnlineTrainer(KnownAttributes):
    """A trainer of a program on rows as they arrive, in a separate thread.

    A row is on disk when `send` returns. The process may be killed and started again with the same folder, any number
    of times: every accepted row is trained on exactly once, in the order of acceptance. The parameters are identical,
    bit for bit, to the parameters of an uninterrupted training.

    The position of a row in the stream decides its use: the last of every `test_every` rows is never trained on, and
    each `batch_size` of the other rows form a minibatch. Rows that do not fill a minibatch wait for more rows, also
    when the training is paused, saved, stopped or published.

    Args:
      program_func: as for `fluid.Trainer`. Each feed has rows of one shape, or sequences of such rows.
      optimizer: as for `fluid.Trainer`.
      folder: the folder of the journal and the checkpoints; a missing folder is created.
      batch_size: the number of rows in a minibatch.
      test_every: the last of every `test_every` rows is tested on and never trained on; None tests on no row.
      test_window: the number of newest test rows over which `status()["test"]` computes means.
      checkpoint_every: the number of steps from one checkpoint to the next.
      publish_to: the folder in which `publish` writes versions, as `fluid.serve` reads them; None publishes nothing.
      publish_every: the number of steps from one version to the next; None publishes on request only. A version may
        include one more step, because a minibatch that has been read already is trained on first.
      fetch: the outputs of a published model, see `Trainer.save_inference_model`, such as the name of the prediction.
      export: further options of `Trainer.save_inference_model`, such as `{"platforms": ["cpu"]}`.
      feed_order: the feed of each field of a row, as in `Trainer.train`.
      handlers: handlers of the training, as in `Trainer.train`.
      max_rows: the maximum number of rows that wait to be trained on; more rows are refused.
      max_bytes: the maximum size of the waiting rows, in bytes.
      max_steps: the maximum number of time steps of a sequence.
      options: further arguments of `fluid.Trainer`: seed, place, precision, buckets, param_path and others.

    Attributes:
      rows: the RowFormat, which checks rows and packs them into messages.
      folders: a dict from paths of the server to the names that replace them in error messages to clients.
      max_rows: the maximum number of rows that wait to be trained on.

    Raises:
      FluidError: the program has a mistake, as for `fluid.Trainer`.
      ProgramError: a feed does not consist of rows of one shape.
      JournalError: another OnlineTrainer uses the folder, or the folder was written with another `batch_size` or
        `test_every`.
      CheckpointError, ParameterError: the checkpoints are damaged, or of another program.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[1]), fluid.layers.data("y", shape=[1])
      ...     return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))}
      >>> with fluid.OnlineTrainer(program, fluid.optimizer.SGD(0.1), "online", batch_size=2, test_every=3) as online:
      ...     first = online.send({"x": [1.0, 2.0, 3.0, 1.0, 0.5], "y": [2.0, 4.0, 6.0, 2.0, 1.0]})
      ...     while (status := online.save())["state"] == "training":
      ...         pass
      >>> status["accepted"], status["steps"], status["tested"]
      (5, 2, 1)
    """

    @fitting("fluid.OnlineTrainer")
    def __init__(
        self,
        program_func: Callable[[], Any],
        optimizer: OptimizerLike | None,
        folder: PathLike,
        batch_size: int = 32,
        *,
        test_every: int | None = 10,
        test_window: int = 1000,
        checkpoint_every: int = 100,
        publish_to: PathLike | None = None,
        publish_every: int | None = None,
        fetch: Any = None,
        export: Mapping[str, Any] | None = None,
        feed_order: FeedOrder = None,
        handlers: Handlers = (),
        max_rows: int = 100_000,
        max_bytes: int = 1 << 30,
        max_steps: int | None = 1024,
        **options: Any,
    ):
        self._split = Split(batch_size, test_every)
        self._checkpoint_every = whole_number("OnlineTrainer", "checkpoint_every", checkpoint_every)
        least = len(self._split.span(1)) + 1
        max_rows = whole_number("OnlineTrainer", "max_rows", max_rows, least)
        self.max_rows = max_rows
        max_bytes = whole_number("OnlineTrainer", "max_bytes", max_bytes)
        window = whole_number("OnlineTrainer", "test_window", test_window)
        if publish_every is not None:
            whole_number("OnlineTrainer", "publish_every", publish_every)
        if publish_to is None and (publish_every or fetch or export):
            raise errors.ArgumentError(
                "publish_every=, fetch= and export= say what is published, and publish_to= where: "
                'OnlineTrainer(..., publish_to="models/digits")'
            )
        self._publish_every = publish_every
        self._publisher = None if publish_to is None else Publisher(publish_to, {**(export or {}), "fetch": fetch})
        self._path = _made_folder(folder)
        self.folders = {str(self._path): "the folder of the training"}
        if self._publisher is not None:
            self.folders[str(self._publisher.folder)] = "the folder of versions"
        self._making = (program_func, optimizer, options)
        settings = {"batch_size": self._split.batch_size, "test_every": self._split.test_every}
        self._journal = Journal(self._path / "journal.db", settings, max_rows, max_bytes, least)
        self._split.skipped = self._journal.skipped
        try:
            trainer = self._make()
            # Remove from each feed the file and line that declare it, because error messages to clients must not
            # contain them.
            specs = {name: dataclasses.replace(spec, site="") for name, spec in trainer.program.feeds.items()}
            self.rows = RowFormat(specs, feed_order, max_steps)
            order = dict(feed_order) if isinstance(feed_order, Mapping) else list(feed_order or ())
            self._feed_order = None if feed_order is None else order
            stream = JournalMinibatches(self._journal, self.rows, self._split)
            self._moving = MovingTest(stream.tested, window)
            handlers = [self._moving, *listed(handlers)]
            self._control = Control(trainer, self._make, stream, handlers, self._after_step, self._drop)
        except BaseException:
            self._journal.close()
            raise

    def send(self, rows: Any, key: str | None = None, wait: float = 0.0) -> int:
        """Accept rows; when this call returns, the rows are on disk.

        Args:
          rows: a list of rows, a tuple of columns, or a dict of columns, like minibatches of `Trainer.train`. All of
            them are accepted, or none.
          key: a string that is unique to these rows; rows that are sent again with the same key are not added twice.
          wait: the time, in seconds, to wait while the journal is full.

        Returns:
          The position of the first row in the stream.

        Raises:
          FeedError, UnknownNameError: the rows do not fit the feeds; none was accepted.
          JournalFullError: too many rows wait to be trained on.
          OnlineError: other rows were sent with this key before.
          JournalError: the rows cannot be written; none was accepted.
        """
        return self.accept(self.rows.pack(rows), key, wait).first

    def accept(self, packed: Packed, key: str | None = None, wait: float = 0.0, note: Note = None) -> Accepted:
        """Accept rows that `rows.pack` has already checked and packed; see `send`.

        Args:
          packed: the result of `rows.pack`.
          key: a string that is unique to these rows, as for `send`; None adds the rows in any case.
          wait: the time, in seconds, to wait while the journal (the database of the rows) is full.
          note: a name and a value to write to the journal together with the rows, see `Journal.append`.
        """
        if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable()):
            raise errors.ArgumentError(f"a key has 1 to {_LONGEST_KEY} ASCII characters, found {key[:60]!r}")
        deadline = time.monotonic() + wait
        while True:
            try:
                return self._journal.append(packed.body, packed.head, packed.rows, key, note)
            except errors.JournalFullError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                with self._journal.changed:
                    self._journal.changed.wait(left)

    def send_all(self, reader: ReaderLike, name: str = "reader") -> int:
        """Accept the minibatches of one epoch of a reader; wait while the journal is full.

        The position of the reader is written with the rows. A script that runs again with the same reader continues
        after the last accepted minibatch. After the end of the epoch, it adds nothing.

        Args:
          reader: the reader, as for `Trainer.train`.
          name: the name of the stored position; with another name, the reader starts with its first minibatch.

        Returns:
          The number of rows that this call has accepted.

        Raises:
          FeedError: data does not fit the feeds; the minibatches before it are accepted.
          OnlineError: the journal is full, and the training has stopped.
        """
        source = minibatches(reader)
        noted = self._journal.note(f"reader {name}")
        if noted is not None:
            source.restore(json.loads(noted))
        count = 0
        for minibatch in source():
            packed = self.rows.pack(minibatch)
            note = (f"reader {name}", json.dumps(source.state()))
            accepted = None
            while accepted is None:
                try:
                    accepted = self.accept(packed, wait=_PATIENCE, note=note)
                except errors.JournalFullError:
                    self._control.check_started()
            count += packed.rows
        return count

    def signature(self) -> dict[str, Any]:
        """Return the declaration that a client needs to send rows: the feeds, and the order of the fields in a row."""
        specs = self.rows.specs
        found = protocol.Signature(specs, []).to_json()
        columns = {name: spec.column for name, spec in specs.items() if spec.column is not None}
        return {**found, "columns": columns, "feed_order": self._feed_order}

    def start(self) -> dict[str, Any]:
        """Start to train, or continue from the newest checkpoint; do nothing if the training runs already.

        Returns:
          The status of the training, see the method `status`.
        """
        self._control.start()
        return self.status()

    def pause(self) -> dict[str, Any]:
        """Pause the training until `resume`, and write a checkpoint. The journal still accepts rows.

        Raises:
          OnlineError: the training has stopped.
          CheckpointError: the checkpoint could not be written; the log says why.
        """
        self._control.pause()
        return self.save()

    def resume(self) -> dict[str, Any]:
        """Continue the training after `pause`.

        Raises:
          OnlineError: the training has stopped.
        """
        self._control.resume()
        return self.status()

    def save(self) -> dict[str, Any]:
        """Write a checkpoint between two steps; when this call returns, the checkpoint is on disk.

        Raises:
          OnlineError: the training has stopped.
          CheckpointError: the checkpoint could not be written; the log says why.
        """
        self._control.ask(lambda trainer: self._check_saved())
        return self.status()

    def publish(self) -> dict[str, Any]:
        """Write an exported model between two steps, as the version `publish_to/STEPS/model.fluid`.

        A server with `fluid.serve({"digits": "models/digits"}, reload_every=10)` loads the new version.

        Raises:
          OnlineError: the training has stopped, `publish_to` is None, or the folder has a newer version.
          ArtifactError: the program cannot be exported, or the file cannot be written.
        """
        publisher = self._publisher
        if publisher is None:
            raise errors.OnlineError('there is nowhere to publish to: OnlineTrainer(..., publish_to="models/digits")')
        self._control.ask(lambda trainer: publisher.publish(trainer, self._control.steps))
        return self.status()

    def stop(self) -> dict[str, Any]:
        """End the training after the current step, and write a checkpoint.

        The journal still accepts rows, and `start` continues the training.
        """
        self._control.stop()
        return self.status()

    def skip(self, rows: Iterable[int]) -> dict[str, Any]:
        """Leave out rows, such as rows that have made a parameter NaN; `start` continues from the newest checkpoint.

        The minibatches after the checkpoint are formed as if these rows were never sent. All other accepted rows are
        trained on exactly once. The journal remembers the skipped rows.

        Args:
          rows: the positions of the rows in the stream, which the error of a failed training names, and `send` returns.

        Raises:
          OnlineError: a training is running; or the newest checkpoint includes one of the rows; or a row was never
            accepted. Then no row is skipped.
        """
        positions = [whole_number("OnlineTrainer.skip", "rows", row, 0) for row in rows]

        def change(steps: int) -> None:
            first, stop = self._split.start(steps), self._journal.next
            wrong = [row for row in positions if not first <= row < stop and row not in self._split.skipped]
            if wrong:
                raise errors.OnlineError(
                    f"cannot skip row {wrong[0]}: the newest checkpoint, of step {steps}, includes the rows before "
                    f"{first}, and {stop} rows were accepted; expected rows from {first} to {stop - 1}"
                )
            self._journal.skip(positions)
            self._split.skipped = self._journal.skipped

        self._control.go_back(change)
        return self.status()

    def close(self) -> None:
        """Stop the training, and close the journal; another OnlineTrainer may then open the folder."""
        self._control.stop()
        self._journal.close()

    def __enter__(self) -> OnlineTrainer:
        self.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def status(self) -> dict[str, Any]:
        """Return the status of the training.

        Returns:
          A dict of JSON values. `state` is "training", "waiting" (for rows), "paused", "stopped" or "failed". `error`
          is the message of the error that ended the training, or None. `accepted`, `trained`, `tested`, `skipped` and
          `waiting` are numbers of rows. `steps` is the number of steps done. `saved` and `published` are the step
          numbers of the newest checkpoint and of the newest published version; None if there is none. `last` has the
          scalar outputs of the last step by name; `test` has their means over the newest test rows.
        """
        # Read the state of the training before the numbers of rows. Then, if the state is "waiting", the numbers
        # include all rows that were accepted before the training began to wait.
        state = self._control.state
        steps = self._control.steps
        saved = self._saved()
        failure = self._control.failure
        return {
            "state": state,
            "error": None if failure is None else str(failure)[:500],
            "accepted": self._journal.next,
            "trained": steps * self._split.batch_size,
            "tested": self._moving.tested,
            "skipped": len(self._journal.skipped),
            "waiting": self._journal.waiting,
            "steps": steps,
            "saved": saved[-1] if saved else None,
            "published": None if self._publisher is None else self._publisher.newest,
            "last": finite({name: number(value) for name, value in self._control.outputs.items()}),
            "test": finite(self._moving.means()),
        }

    def metrics(self) -> str:
        """Return the status of the training in the text format of Prometheus."""
        from fluid.online.app import OnlineMetrics

        return OnlineMetrics(self.status).text()[0].decode()

    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 8001,
        *,
        token: str | None = None,
        allow_anonymous: bool = False,
        **settings: Any,
    ) -> Any:
        """Accept rows and commands over HTTP, in a thread of this process; see `fluid.RemoteTrainer`.

        Args:
          host, port, token, allow_anonymous: as for `fluid.serve`.
          settings: limits, see `fluid.serving.Settings`: max_body, max_pending, read_timeout and others.

        Returns:
          A server: `with online.serve() as server`, `server.url`, `server.close()`. Close the server before the
          OnlineTrainer.
        """
        server = self.host(host, port, token, allow_anonymous, checked_settings(settings))
        server.start()
        return server

    def host(self, host: str, port: int, token: str | None, allow_anonymous: bool, settings: Settings) -> HTTPServer:
        """Create the HTTP server of `serve`, but do not start it."""
        # imported only when needed: a training without a server does not need these modules
        from fluid.online.app import OnlineApp

        return HTTPServer(
            lambda access: OnlineApp(self, settings, access), host, port, token, allow_anonymous, settings
        )

    def _make(self) -> Trainer:
        """Create the Trainer of an online training, which continues from the newest checkpoint."""
        program_func, optimizer, options = self._making
        config = CheckpointConfig(
            self._path / "checkpoints", max_num_checkpoints=_KEPT, epoch_interval=None,
            step_interval=self._checkpoint_every,
        )  # fmt: skip
        trainer = Trainer(program_func, optimizer, checkpoint_config=config, **options)
        steps = int(trainer.session.scope.step)
        # The Trainer reads the last trained minibatch again, and compares its rows with the checksum in the checkpoint.
        needed = self._split.start(max(steps - 1, 0))
        if self._journal.held > needed or self._journal.next < self._split.start(steps):
            raise errors.JournalError(
                f"the checkpoint in {str(self._path)!r} has gone through {self._split.start(steps)} rows and needs "
                f"those from {needed} on, and the journal holds {self._journal.held} to {self._journal.next}; expected "
                f"both of one training. Bring back the whole folder, or start anew in another one"
            )
        self._journal.passed(self._split.start(steps))
        return trainer

    def _after_step(self, steps: int) -> None:
        self._journal.passed(self._split.start(steps))
        if steps % self._checkpoint_every == 0:
            self._drop()
        if self._publish_every is not None and steps % self._publish_every == 0:
            self._control.ask_later(self._publish)

    def _publish(self, trainer: Trainer) -> None:
        assert self._publisher is not None
        try:
            self._publisher.publish(trainer, self._control.steps)
        except errors.FluidError as error:
            LOG.error("nothing was published after %d steps: %s; training goes on", self._control.steps, error)

    def _saved(self) -> list[int]:
        folder = self._path / "checkpoints"
        return Folder(folder, read_only=True).steps() if folder.is_dir() else []

    def _drop(self) -> None:
        saved = self._saved()
        if saved:
            self._journal.drop(self._split.start(max(saved[0] - 1, 0)))

    def _check_saved(self) -> None:
        if self._control.steps and self._control.steps not in self._saved():
            raise errors.CheckpointError(
                f"the checkpoint of step {self._control.steps} in {str(self._path)!r} was not written; the log says why"
            )


def _made_folder(folder: PathLike) -> pathlib.Path:
    """Return the path of `folder`; create the folder if it is missing, and forbid other users to write to it."""
    path = local_path(folder, errors.JournalError)
    if recognized(path) == "checkpoints":
        raise errors.JournalError(
            f"{str(path)!r} holds the checkpoints of a fluid.Trainer; expected a folder for an OnlineTrainer alone. To "
            f"start from these parameters: fluid.OnlineTrainer(program, optimizer, 'online', "
            f"params=fluid.Inferencer(program, checkpoint={str(path)!r}).session.params())"
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.JournalError(
            f"no journal can be kept in {str(path)!r}: {error.strerror}; expected a folder that can be written"
        ) from error
    if os.name == "posix" and path.stat().st_mode & 0o022:
        try:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o022)
        # Another user owns the folder, for example on a mounted volume, so this process cannot change its permissions.
        except PermissionError:
            LOG.warning("other users can write to %s, and replace the journal there; expected chmod go-w", path)
    return path
