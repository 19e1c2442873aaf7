"""The server: connections, their limits, and how it ends.

uvicorn speaks HTTP. What it leaves open is added here: a client that says nothing, sends its header
slowly, does not read its answer, or opens very many connections is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import json
import logging
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from transformer_mt.serving.app import Service
from transformer_mt.utils import signals
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import Interrupted, UsageError, UserError

# The seconds in which the whole header of a request must arrive.
HEADER_SECONDS = 10.0
# The seconds after which a connection is closed on which no new request begins. Proxies keep theirs
# for 60 seconds, and it is better if they close them.
IDLE_SECONDS = 75
# The seconds in which a client must take its answer.
ANSWER_SECONDS = 60.0
# The seconds for which the rest of a refused request is read, and thrown away, so that the client
# gets to read the refusal.
LINGER_SECONDS = 2.0
CONNECTIONS = 1_000
# Files that the process needs besides connections.
OTHER_FILES = 200


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, which nobody can connect to yet. Port 0 stands for a free one.

    Raises:
        UsageError: the address is not one of this machine, or may not be used.
        UserError: the port is taken.
    """
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise UsageError(f"--host {host}: there is no such address") from None
    found = socket.socket(family, kind, number)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        raise _explained(error, host, port) from None
    return found


def listen(listening: socket.socket) -> None:
    """From now on, clients can connect to a socket.

    Raises:
        UserError: another program listens at its port.
    """
    try:
        listening.listen()
    except OSError as error:
        raise _explained(error, *listening.getsockname()[:2]) from None


def is_loopback(listening: socket.socket) -> bool:
    """Whether only this machine can connect to a socket."""
    return ipaddress.ip_address(listening.getsockname()[0].partition("%")[0]).is_loopback


def address(listening: socket.socket) -> str:
    """Where a browser finds what listens on a socket."""
    host, port = listening.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(service: Service, listening: socket.socket, timeout: float) -> None:
    """Serves until a signal asks to stop. Requests that have begun are finished, up to `timeout`
    seconds. A second signal ends at once.

    Raises:
        Interrupted: there was a second signal.
    """
    _allow_files()
    # uvicorn reports here what is reported elsewhere already.
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    logging.getLogger("uvicorn").propagate = False
    server = Server(service, timeout)
    server.run([listening])
    if server.second_signal is not None:
        raise Interrupted(server.second_signal)


class Server(uvicorn.Server):
    def __init__(self, service: Service, timeout: float) -> None:
        self._service = service
        self.second_signal: int | None = None
        waiting: dict[Connection, None] = {}

        def connection(**options: Any) -> Connection:
            return Connection(waiting, **options)

        config = uvicorn.Config(
            service,
            loop="asyncio",
            http=connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=max(1, round(timeout)),
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_report)
        await super().startup(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals during a block, in place of the handlers of the command line."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in signals.STOPPING}
        handled = [number for number, handler in before.items() if handler != signal.SIG_IGN]
        for number in handled:
            loop.add_signal_handler(number, self._stop, number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
                signal.signal(number, before[number])

    def _stop(self, number: int) -> None:
        if not self.should_exit:
            self.should_exit = True
            if count := len(self.server_state.tasks):
                answers = f"{count} more answer{'' if count == 1 else 's'}"
                say(f"stopping after {answers}. Another Ctrl-C stops at once")
            return
        self.second_signal = number
        self.force_exit = True
        self._service.give_up()
        for connection in list(self.server_state.connections):
            connection.transport.abort()


class Connection(H11Protocol):
    """A connection of a client.

    Args:
        waiting: the connections of the server that wait for the rest of a request, those first
            that have waited the longest. If there are too many connections, the first is closed.
    """

    def __init__(self, waiting: dict[Connection, None], **options: Any) -> None:
        super().__init__(**options)
        self._waiting = waiting
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # ---- Called by the event loop ----

    def connection_made(self, transport: asyncio.Transport) -> None:
        if len(self.connections) >= CONNECTIONS and self._waiting:
            next(iter(self._waiting)).drop()
        super().connection_made(_Transport(transport, self))
        self._waiting[self] = None
        self.start_timer("header", HEADER_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # It is read only so that the client can read its answer.
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and "header" not in self._timers:
            self.start_timer("header", HEADER_SECONDS)
        self._note()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        for name in list(self._timers):
            self.stop_timer(name)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        self.start_timer("answer", ANSWER_SECONDS)
        super().pause_writing()

    def resume_writing(self) -> None:
        self.stop_timer("answer")
        super().resume_writing()

    # ---- Called by uvicorn ----

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note()

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP."""
        body = json.dumps({"detail": "this is not HTTP, or a header is too long"}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        # h11 refuses to send this while an earlier request of the connection is being answered.
        with contextlib.suppress(h11.LocalProtocolError):
            start = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (start, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    # ---- Its own ----

    def drop(self) -> None:
        """Closes the connection at once."""
        self._waiting.pop(self, None)
        self.transport.abort()

    def start_timer(self, name: str, seconds: float) -> None:
        """Drops the connection after some seconds, unless the timer is stopped."""
        self.stop_timer(name)
        self._timers[name] = self.loop.call_later(seconds, self.drop)

    def stop_timer(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def _note(self) -> None:
        """Notes whether this connection waits for a request."""
        state = self.conn.their_state
        if state is not h11.IDLE:
            self.stop_timer("header")
        if state in (h11.IDLE, h11.SEND_BODY):
            self._waiting.setdefault(self)
        else:
            self._waiting.pop(self, None)


class _Transport:
    """The transport of a connection. It ends only when the client has had time to read the answer.

    If a connection is closed while the client still sends, the client's system throws away what has
    come from here. So the connection is first closed in one direction only.
    """

    def __init__(self, transport: asyncio.Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection
        self._is_closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._is_closing = True
        if self._connection.conn.their_state in (h11.SEND_BODY, h11.ERROR):
            self._connection.start_timer("end", LINGER_SECONDS)
            with contextlib.suppress(OSError):  # The client may be gone.
                self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()
            self._connection.start_timer("end", ANSWER_SECONDS)


def _allow_files() -> None:
    """Lets the process have as many connections open as it accepts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Prints what went wrong outside of a request, such as that no more files can be opened."""
    error = context.get("exception")
    if not isinstance(error, ConnectionError):
        say(f"internal error: {context.get('message')} {type(error).__name__ if error else ''}")


def _explained(error: OSError, host: str, port: int) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(
            f"--port {port}: another program uses this port. Choose another one, or --port 0 for a "
            "free one"
        )
    if error.errno == errno.EACCES:
        return UsageError(f"--port {port}: ports below 1024 need the rights of root")
    return UsageError(f"--host {host} --port {port}: {error.strerror}")
