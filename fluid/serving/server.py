"""Servers: run an ASGI application by uvicorn, in a thread or in a separate process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import logging
import os
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from fluid import errors
from fluid.inferencer import Inferencer
from fluid.place import Place
from fluid.serving.connection import connection_class
from fluid.serving.http import AccessPolicy, Application, access_policy
from fluid.serving.settings import Settings

LOG = logging.getLogger("fluid.serving")
_BACKLOG = 2048
_LAST_PORT = 65535
_RESERVE = 128  # the number of open files reserved for models, logs, and connections above max_connections
Models = Mapping[str, Any] | str | os.PathLike[str]


class HTTPServer:
    """A server of an ASGI application by uvicorn, in a separate thread (`start`) or in the main thread (`run`).

    Attributes:
      app: the application.
      url: the URL of the server.
    """

    def __init__(
        self,
        make_app: Callable[[AccessPolicy], Application],
        host: str,
        port: int,
        token: str | None,
        allow_anonymous: bool,
        settings: Settings,
    ):
        access = access_policy(host, token, allow_anonymous)
        self._settings = replace(settings, max_connections=_most_connections(settings.max_connections))
        self._socket = _listening(host, port)
        try:
            self.app: Any = make_app(access)
            self._server = self._uvicorn_server()
        except BaseException:
            self._socket.close()
            raise
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C; then respond to all requests in flight, and return."""
        self._server.run([self._socket])

    def start(self) -> None:
        """Serve in a thread, and return when the application is ready; Python calls `close` when it exits.

        Raises:
          RemoteError: the application has failed, and will never be ready.
        """
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="fluid-server", daemon=True
        )
        self._thread.start()
        # close the server before Python exits, because Python must not exit while a thread runs JAX
        atexit.register(self.close)
        while not self.app.ready:
            if not self._thread.is_alive() or self.app.failure is not None:
                self.close()
                raise errors.RemoteError(f"the server at {self.url} did not start: {self.app.failure}")
            time.sleep(0.01)

    def close(self) -> None:
        """Respond to all requests in flight, and stop the server."""
        atexit.unregister(self.close)
        self._drain()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def _drain(self, *signalled: Any) -> None:
        self.app.draining = True
        if self._server.should_exit and signalled:
            self._server.force_exit = True  # a second SIGTERM or Ctrl-C ends the server immediately
        self._server.should_exit = True

    def _uvicorn_server(self) -> Any:
        import uvicorn

        config = uvicorn.Config(
            self.app,
            http=connection_class(self._settings, self.app.pending),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=max(1, round(self._settings.drain)),
        )
        drain = self._drain

        class DrainingServer(uvicorn.Server):
            def handle_exit(self, sig: int, frame: Any) -> None:
                # The method of uvicorn is replaced, because it would raise the signal again at the end of the server,
                # and the exit status would not be 0.
                drain(sig)

            async def shutdown(self, sockets: Any = None) -> None:
                state: Any = self.server_state
                state.ending = True  # the server ends: each new connection is closed after its first response
                late = [one for listening in sockets or () for one in _accept_backlog(listening)]
                for server in self.servers:
                    server.close()
                for one in late:
                    await asyncio.get_running_loop().connect_accepted_socket(self._connection, one)
                await super().shutdown(sockets)

            def _connection(self) -> Any:
                make: Any = config.http_protocol_class
                return make(config=config, server_state=self.server_state, app_state=self.lifespan.state)

        return DrainingServer(config)


class Server(HTTPServer):
    """A server of models over HTTP. `fluid.serve` creates and starts a Server; the end of a `with` block closes it.

    Attributes:
      app: the application.
      url: the URL of the server.
    """

    def __init__(
        self,
        models: Models,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        allow_anonymous: bool = False,
        place: Place = None,
        reload_every: float | None = None,
        settings: Settings | None = None,
    ):
        settings = settings or Settings()

        def make_app(access: AccessPolicy) -> Application:
            # imported only when needed, because OnlineTrainer and other commands need no App
            from fluid.serving.app import App

            return App(_by_name(models), settings, access, place, reload_every)

        super().__init__(make_app, host, port, token, allow_anonymous, settings)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C; then respond to all requests in flight, and return."""
        LOG.info("serving %s at %s", ", ".join(self.app.models.names()), self.url)
        self.app.on_loaded = freeze_garbage
        super().run()

    def __repr__(self) -> str:
        return f"Server({', '.join(self.app.models.names())} at {self.url})"


def serve(
    models: Models,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    token: str | None = None,
    allow_anonymous: bool = False,
    place: Place = None,
    reload_every: float | None = None,
    **settings: Any,
) -> Server:
    """Serve models over HTTP by the Open Inference Protocol (version 2), in a thread of this process.

    Args:
      models: a dict by name: files of `trainer.save_inference_model`, folders of versions such as
        `digits/3/model.fluid`, or Inferencers; or a single file, whose model has the name of the file.
      host: the address to listen on. An address that other machines can reach requires a token.
      port: the port to listen on; 0 for any free port.
      token: the token that clients must send as `Authorization: Bearer TOKEN`; None requires no token.
      allow_anonymous: True allows any address without a token.
      place: a device, see `fluid.place.device_of`.
      reload_every: the number of seconds between searches for new versions in folders; None never searches.
      settings: see `fluid.serving.Settings`: max_batch, max_delay_ms, buckets, timeout, max_body and others.

    Returns:
      The Server, after all models are compiled: `with fluid.serve(...) as server`, `server.url`, `server.close()`.

    Raises:
      ArtifactError: a file is missing or damaged.
      ArgumentError: a setting is invalid, the port is in use, or other machines can reach the address without a token.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      >>> params = {"fc_0.w_0": np.ones((2, 1), "float32"), "fc_0.b_0": np.zeros(1, "float32")}
      >>> fluid.io.save_inference_model("line.fluid", program, params)
      >>> with fluid.serve("line.fluid", port=0, max_batch=2) as server:
      ...     fluid.Inferencer(url=server.url).infer({"x": [[1, 2]]})[0].tolist()
      [[3.0]]
    """
    server = Server(models, host, port, token, allow_anonymous, place, reload_every, checked_settings(settings))
    server.start()
    return server


def create_app(
    models: Models,
    *,
    token: str | None = None,
    place: Place = None,
    reload_every: float | None = None,
    **settings: Any,
) -> Any:
    """Return the ASGI application of `fluid.serve`, to run it with another server: `uvicorn module:app`.

    The other server must limit the number of connections and the size of request heads.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.data("x", shape=[2]) * 2
      >>> app = create_app({"double": fluid.Inferencer(program, params={})}, max_batch=4)
      >>> app.models.names(), app.ready
      (['double'], False)
    """
    from fluid.serving.app import App

    return App(_by_name(models), checked_settings(settings), AccessPolicy(token), place, reload_every)


def checked_settings(given: Mapping[str, Any]) -> Settings:
    """Return the Settings with the values of keyword arguments.

    Raises:
      ArgumentTypeError: there is no such setting.
      ArgumentError: the value of a setting is invalid.
    """
    known = Settings.__dataclass_fields__
    for name in given:
        if name not in known:
            raise errors.ArgumentTypeError(f"there is no setting {name!r}. {errors.nearest(name, known)}")
    return Settings(**given)


def freeze_garbage() -> None:
    """Exclude all existing objects from garbage collection, which takes 100 ms with JAX and the models."""
    # Model versions that an earlier call has excluded may be replaced by now. Include all objects again before the
    # collection, so that it frees these versions too.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _by_name(models: Models) -> Mapping[str, Any]:
    """Return the models to serve as a dict by name.

    A single file gets the name of the file without its ending. A single Inferencer gets the name "model".
    """
    if isinstance(models, str | os.PathLike):
        models = {pathlib.Path(models).stem: models}
    if not isinstance(models, Mapping):
        models = {"model": models}
    for name, model in models.items():
        if not isinstance(model, str | os.PathLike | Inferencer):
            raise errors.ArgumentTypeError(
                f"the model {name!r} is a {type(model).__name__}, expected the path of an exported model, or an "
                f'Inferencer: trainer.save_inference_model("{name}.fluid", fetch=["prediction"]) writes one, and '
                f'fluid.serve("{name}.fluid") serves it'
            )
    return models


def _most_connections(wanted: int) -> int:
    """Return the number of connections that the process's limit of open files allows, at most `wanted`."""
    try:
        import resource
    except ImportError:  # on Windows, which has no module `resource`, open files do not limit the connections
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, max(files - _RESERVE, files // 4)))


def _accept_backlog(listening: socket.socket) -> list[socket.socket]:
    """Accept and return the connections that wait at a listening socket: closing the socket would reset them."""
    found = []
    # `accept` raises an OSError if no connection is waiting, or if no file descriptor is left.
    with contextlib.suppress(OSError):
        while True:
            found.append(listening.accept()[0])
    # Refuse new connections from now on; the event loop closes the socket later. Only Linux allows `shutdown` of a
    # listening socket, so errors are ignored.
    with contextlib.suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)
    return found


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; connections wait in its backlog until the server runs."""
    # Refuse larger port numbers, because getaddrinfo uses them modulo 65536.
    if type(port) is not int or not 0 <= port <= _LAST_PORT:
        raise errors.ArgumentError(
            f"found port={port!r}, expected a number from 1 to {_LAST_PORT}, or 0 for any free one"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Pass the protocol number, because asyncio sets TCP_NODELAY only on sockets with it. Without TCP_NODELAY, a
        # response waits 40 ms for the acknowledgement of its head.
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(_BACKLOG)
        except OSError:
            found.close()
            raise
        return found
    except OSError as error:
        raise errors.ArgumentError(
            f"cannot listen on {host}:{port}: {error}; choose another port, or 0 for any that is free"
        ) from error
