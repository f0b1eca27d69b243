"""RemoteTrainer: a client of an OnlineTrainer behind HTTP."""

import dataclasses
import time
import uuid
from collections.abc import Mapping
from typing import Any

from fluid import errors, protocol
from fluid.remote.connection import Connection
from fluid.remote.rows import RowFormat

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
_RETRIED = (429, 503)  # statuses
_PAUSE = 1.0  # seconds before another try, if the server does not name them


class RemoteTrainer:
    """A client of `python -m fluid online` or `OnlineTrainer.serve`, with the verbs of an OnlineTrainer.

    The client checks rows against the feeds of the program, and raises the errors of an OnlineTrainer. Several threads
    may use it.

    Args:
      url: of the server.
      token: of the server, or None.

    Attributes:
      url: as given.

    Raises:
      ArgumentError: the URL is none.
      RemoteError: the server does not respond, refuses, or is no OnlineTrainer.

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
        self._rows = _row_format(self._get("/signature"), url)

    def send(self, rows: Any, key: str | None = None, wait: float = 60.0) -> int:
        """Send rows; when this returns, they are on the disk of the server.

        Rows that are sent again with the same key are not added twice. This method sends them again while the journal
        is full, or the server does not respond.

        Args:
          rows: as for `OnlineTrainer.send`.
          key: unique to these rows; by default random.
          wait: seconds to try; 0 tries once.

        Returns:
          The position of the first row in the stream.

        Raises:
          FeedError, UnknownNameError: the rows do not fit; none was accepted.
          JournalFullError: the journal was full all the time; none was accepted.
          OnlineError: other rows had this key.
          RemoteError: the server refuses; or it does not respond, and rows sent again with the same key are safe.
        """
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

    def start(self) -> dict[str, Any]:
        """See `OnlineTrainer.start`."""
        return self._post("/start")

    def pause(self) -> dict[str, Any]:
        """See `OnlineTrainer.pause`."""
        return self._post("/pause")

    def resume(self) -> dict[str, Any]:
        """See `OnlineTrainer.resume`."""
        return self._post("/resume")

    def save(self) -> dict[str, Any]:
        """See `OnlineTrainer.save`."""
        return self._post("/save")

    def publish(self) -> dict[str, Any]:
        """See `OnlineTrainer.publish`."""
        return self._post("/publish")

    def stop(self) -> dict[str, Any]:
        """See `OnlineTrainer.stop`; the server goes on, and accepts rows."""
        return self._post("/stop")

    def status(self) -> dict[str, Any]:
        """See `OnlineTrainer.status`."""
        return self._get("/status")

    def metrics(self) -> str:
        """See `OnlineTrainer.metrics`; also with the number of requests."""
        return self._connection.call("GET", self._path("/metrics")).decode()

    def _path(self, path: str) -> str:
        return f"{self._connection.path}{path}"

    def _get(self, path: str) -> dict[str, Any]:
        return self._connection.json("GET", self._path(path))

    def _post(self, path: str) -> dict[str, Any]:
        return self._connection.json("POST", self._path(path))


def _row_format(found: Mapping[str, Any], url: str) -> RowFormat:
    """Return the row format of `OnlineTrainer.signature`."""
    specs = protocol.Signature.from_json(found, url).feeds
    columns = found.get("columns", {})
    specs = {name: dataclasses.replace(spec, column=columns.get(name)) for name, spec in specs.items()}
    return RowFormat(specs, found.get("feed_order"))
