"""The class RemoteTrainer: an HTTP client of an OnlineTrainer, or of a Trainer with its readers."""

import dataclasses
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fluid import errors
from fluid.core import whole_number
from fluid.online.rows import RowFormat
from fluid.serving import protocol
from fluid.serving.client import Connection

_KINDS = (
    errors.ArtifactError,
    errors.CheckpointError,
    errors.FeedError,
    errors.FeedTypeError,
    errors.JournalError,
    errors.JournalFullError,
    errors.OnlineError,
    errors.ProtocolError,
    errors.UnknownNameError,
)
_RETRIED = (429, 503)  # the HTTP status codes after which `send` retries
_PAUSE = 1.0  # the number of seconds before a retry, unless the response has a header Retry-After


class RemoteTrainer:
    """A client of a training in another process: of an OnlineTrainer, or of a Trainer with its readers.

    `python -m fluid online` and `OnlineTrainer.serve` train on the rows that clients `send`. The client checks rows
    against the feeds of the program, and raises the same errors as an OnlineTrainer.

    `python -m fluid remote FILE.py:make_trainer` hosts a Trainer: the function returns `trainer, reader`, or `trainer,
    reader, test_reader`. Clients call `train`, `pause`, `resume`, `stop`, `test` and `save`, and read `events`.

    Several threads may use one client.

    Args:
      url: the URL of the server.
      token: the access token that the server requires, or None.

    Attributes:
      url: the argument `url`.

    Raises:
      ArgumentError: `url` is not the URL of a server.
      RemoteError: the server does not respond, refuses the request, or has no training.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[1]), fluid.layers.data("y", shape=[1])
      ...     return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))}
      >>> online = fluid.OnlineTrainer(program, fluid.optimizer.SGD(0.1), "online", batch_size=2, test_every=None)
      >>> with online, online.serve(port=0) as server:
      ...     trainer = fluid.RemoteTrainer(server.url)
      ...     first = trainer.send({"x": [1.0, 2.0], "y": [2.0, 4.0]})
      ...     trainer.pause()["state"], trainer.stop()["accepted"]
      ('paused', 2)
    """

    def __init__(self, url: str, token: str | None = None):
        self._connection = Connection(url, token, "python -m fluid online MODULE:FUNCTION", _KINDS)
        self.url = url
        signature = self._get("/signature")
        self._rows = None if signature.get("trainer") else _row_format(signature, url)
        self._next_event = 0

    def send(self, rows: Any, key: str | None = None, wait: float = 60.0) -> int:
        """Send rows to train on; when this call returns, the rows are on the disk of the server.

        Rows that are sent again with the same key are not added twice. This method sends the rows again while the
        journal (the server's store of waiting rows) is full, or while the server does not respond.

        Args:
          rows: as for `OnlineTrainer.send`.
          key: a string that is unique to these rows; by default random.
          wait: the time, in seconds, during which to retry; 0 tries once.

        Returns:
          The position of the first row in the stream.

        Raises:
          FeedError, UnknownNameError: the rows do not fit the feeds; none was accepted.
          JournalFullError: the journal was full all the time; none was accepted.
          OnlineError: other rows were sent with this key before.
          RemoteError: the server refuses the request or does not respond. Without a response, the rows may be
            accepted or not; it is safe to send them again with the same key.
        """
        if self._rows is None:
            raise errors.OnlineError(f"{self.url} trains on the rows of its own reader, expected train(num_epochs)")
        packed = self._rows.pack(rows)
        headers = {
            "Content-Type": "application/octet-stream",
            "Idempotency-Key": uuid.uuid4().hex if key is None else key,
            protocol.HEADER_LENGTH: str(packed.head),
        }
        deadline = time.monotonic() + wait
        while True:
            pause = _PAUSE
            try:
                status, found, answer = self._connection.exchange("POST", self._path("/rows"), packed.body, headers)
                if status == 200:
                    return int(protocol.read_json(answer)["first"])
                failure: errors.FluidError = self._connection.error(status, answer)
                if status not in _RETRIED:
                    raise failure
                pause = float(found.get("retry-after", _PAUSE))
            except errors.RemoteError as error:
                failure = error
            if time.monotonic() + pause > deadline:
                raise failure
            time.sleep(pause)

    def train(self, num_epochs: int = 1) -> dict[str, Any]:
        """Start to train a hosted Trainer on its reader; return the status without waiting for the end.

        Raises:
          OnlineError: a training is already running, or is paused; or the server has an OnlineTrainer.
          ArgumentError: `num_epochs` is not a positive integer.
        """
        self._check_hosted("train(num_epochs)")
        return self._post(f"/train/{whole_number('RemoteTrainer.train', 'num_epochs', num_epochs)}")

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events of a hosted Trainer as they occur, until no training is running.

        The first call begins with the first event of the server. A later call begins after the events already yielded.

        Returns:
          An iterator of dicts with the name of the `event`, such as "EndStepEvent"; its `epoch`, `step`, `steps`,
          `completed`, `epochs` or `stopped`, as in `fluid.trainer`; and `metrics`, the scalar outputs of a step.

        Raises:
          OnlineError: the server has an OnlineTrainer; or the next event is so old that the server has dropped it.
        """
        self._check_hosted("events()")
        while True:
            found = self._get(f"/events/{self._next_event}")
            for event in found["events"]:
                self._next_event += 1
                yield event
            if found["state"] != "training":
                return

    def test(self) -> dict[str, Any]:
        """Test a hosted Trainer on its test reader, between two steps; return the scalar outputs by name.

        Raises:
          OnlineError: there is no test reader, or the server has an OnlineTrainer.
        """
        self._check_hosted("test()")
        return self._post("/test")

    def start(self) -> dict[str, Any]:
        """Start or continue the training of an OnlineTrainer, see `OnlineTrainer.start`; return the status."""
        return self._post("/start")

    def pause(self) -> dict[str, Any]:
        """Pause the training after the current step, see `OnlineTrainer.pause`; return the status."""
        return self._post("/pause")

    def resume(self) -> dict[str, Any]:
        """Continue the training after `pause`; return the status."""
        return self._post("/resume")

    def save(self) -> dict[str, Any]:
        """Write a checkpoint of an OnlineTrainer, see `OnlineTrainer.save`; return the status.

        A hosted Trainer writes a parameter file to the folder of the server instead of a checkpoint.
        """
        return self._post("/save")

    def publish(self) -> dict[str, Any]:
        """Write a version of an exported model, see `OnlineTrainer.publish`; return the status."""
        return self._post("/publish")

    def skip(self, rows: Iterable[int]) -> dict[str, Any]:
        """Leave out rows of a training that is stopped or has failed, see `OnlineTrainer.skip`; return the status."""
        positions = [whole_number("RemoteTrainer.skip", "rows", row, 0) for row in rows]
        return self._post(f"/skip/{','.join(map(str, positions))}")

    def stop(self) -> dict[str, Any]:
        """End the training after the current step, see `OnlineTrainer.stop`; the server continues to accept rows."""
        return self._post("/stop")

    def status(self) -> dict[str, Any]:
        """Return the status, see `OnlineTrainer.status`; for a hosted Trainer also the numbers of epochs and events."""
        return self._get("/status")

    def metrics(self) -> str:
        """Return the status and counts of requests in the text format of Prometheus, see `OnlineTrainer.metrics`."""
        return self._connection.call("GET", self._path("/metrics")).decode()

    def _check_hosted(self, call: str) -> None:
        if self._rows is not None:
            raise errors.OnlineError(
                f"{self.url} has an OnlineTrainer, for which there is no {call}; expected send(rows)"
            )

    def _path(self, path: str) -> str:
        return f"{self._connection.path}{path}"

    def _get(self, path: str) -> dict[str, Any]:
        return self._connection.json("GET", self._path(path))

    def _post(self, path: str) -> dict[str, Any]:
        return self._connection.json("POST", self._path(path))


def _row_format(found: Mapping[str, Any], url: str) -> RowFormat:
    """Return the RowFormat, which checks and converts training rows, from a result of `OnlineTrainer.signature`."""
    specs = protocol.Signature.from_json(found, url).feeds
    columns = found.get("columns", {})
    specs = {name: dataclasses.replace(spec, column=columns.get(name)) for name, spec in specs.items()}
    return RowFormat(specs, found.get("feed_order"))
