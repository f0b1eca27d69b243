"""RemoteTrainer: an OnlineTrainer behind HTTP."""

import dataclasses
import time
import uuid
from collections.abc import Mapping
from typing import Any

from fluid import errors, protocol
from fluid.remote.connection import Connection, told
from fluid.remote.rows import RowFormat

# What a server may call its errors, and what they are here.
_KINDS = {
    kind.__name__: kind
    for kind in (
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
}
_AGAIN = (429, 503)  # statuses that say so
_PATIENCE = 1.0  # seconds, where a server that does not answer cannot say how long


class RemoteTrainer:
    """An OnlineTrainer that `python -m fluid online` or `OnlineTrainer.serve` has put behind HTTP: the same verbs.

    Rows are checked here, against what the server says of the program, so that a bad one is the same error as for the
    OnlineTrainer. Several threads may use it.

    Args:
      url: of the server.
      token: what the server was told to ask for, or None.

    Attributes:
      url: as it was given.

    Raises:
      ArgumentError: that is no URL.
      RemoteError: the server does not answer, refuses, or is another one.

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
        self._connection = Connection(url, token, "python -m fluid online MODULE:FUNCTION")
        self.url = url
        self._rows = _row_format(self._get("/signature"), url)

    def send(self, rows: Any, key: str | None = None, wait: float = 60.0) -> int:
        """Send rows; when this returns, they are on the disk of the server.

        Who sends with the same key again, since there was no answer, adds nothing twice. That is what this does by
        itself while the journal is full, or the server does not answer.

        Args:
          rows: as for `OnlineTrainer.send`.
          key: tells these rows from all others; by default one that is made up.
          wait: seconds to try; 0 tries once.

        Returns:
          The position of the first row in the stream.

        Raises:
          FeedError, UnknownNameError: the rows do not fit; none was accepted.
          JournalFullError: the journal was full all the time; none was accepted.
          OnlineError: other rows had this key.
          RemoteError: the server did not answer, so nobody knows; send them again with the same key, or it refuses.
        """
        packed = self._rows.pack(rows)
        headers = {
            "Content-Type": "application/octet-stream",
            "Idempotency-Key": uuid.uuid4().hex if key is None else key,
            protocol.HEADER_LENGTH: str(packed.head),
        }
        deadline = time.monotonic() + wait
        while True:
            pause = _PATIENCE
            try:
                status, found, answer = self._connection.exchange("POST", self._path("/rows"), packed.body, headers)
                if status == 200:
                    return int(protocol.read_json(answer)["first"])
                failure: errors.FluidError = self._refusal(status, answer)
                if status not in _AGAIN:
                    raise failure
                pause = float(found.get("retry-after", _PATIENCE))
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
        """See `OnlineTrainer.stop`; the server goes on, and takes rows."""
        return self._post("/stop")

    def status(self) -> dict[str, Any]:
        """See `OnlineTrainer.status`."""
        return self._get("/status")

    def metrics(self) -> str:
        """See `OnlineTrainer.metrics`; here with the number of requests."""
        return self._answer("GET", "/metrics").decode()

    def _path(self, path: str) -> str:
        return f"{self._connection.path}{path}"

    def _get(self, path: str) -> dict[str, Any]:
        return protocol.read_json(self._answer("GET", path))

    def _post(self, path: str) -> dict[str, Any]:
        return protocol.read_json(self._answer("POST", path))

    def _answer(self, method: str, path: str) -> bytes:
        status, _, answer = self._connection.exchange(method, self._path(path))
        if status != 200:
            raise self._refusal(status, answer)
        return answer

    def _refusal(self, status: int, answer: bytes) -> errors.FluidError:
        message, kind = told(answer)
        if kind in _KINDS:
            return _KINDS[kind](message)
        return errors.RemoteError(f"{self.url} answered {status}: {message}")


def _row_format(found: Mapping[str, Any], url: str) -> RowFormat:
    """What `OnlineTrainer.signature` returned."""
    specs = protocol.Signature.from_json(found, url).feeds
    columns = found.get("columns", {})
    specs = {name: dataclasses.replace(spec, column=columns.get(name)) for name, spec in specs.items()}
    return RowFormat(specs, found.get("feed_order"))
