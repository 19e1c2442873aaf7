"""The server: its address, its connections, and how it ends.

uvicorn speaks HTTP and limits the number of connections. A proxy such as nginx or Caddy protects it
from slow clients where strangers can reach it (see docs/serving.md).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
from types import FrameType

import uvicorn

from transformer_mt.serving.app import Service
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import Interrupted, UsageError, UserError

# The seconds after which a connection is closed on which no new request begins. Proxies keep theirs
# for 60 seconds, and it is better if they close them.
IDLE_SECONDS = 75
CONNECTIONS = 500
# The bytes of a request's header.
HEADER = 1 << 16


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at an address. Who connects waits until `run`. Port 0 stands for a free
    one.

    Raises:
        UsageError: the address is not one of this machine, or may not be used.
        UserError: the port is taken.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(f"--host {host}: there is no such address") from None
    family, _, _, _, address = found[0]
    try:
        both = family == socket.AF_INET6
        return socket.create_server(address, family=family, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(
                f"--port {port}: another program uses this port. Choose another one, or --port 0 "
                "for a free one"
            ) from None
        raise UsageError(f"--host {host} --port {port}: {os.strerror(error.errno)}") from None


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
    server = Server(service, timeout)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run([listening])
    if server.second_signal is not None:
        raise Interrupted(server.second_signal)


class Server(uvicorn.Server):
    second_signal: int | None = None

    def __init__(self, service: Service, timeout: float) -> None:
        super().__init__(
            uvicorn.Config(
                service,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",  # Errors are reported elsewhere already.
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CONNECTIONS,
                h11_max_incomplete_event_size=HEADER,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=max(1, round(timeout)),
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Asks to stop; the second time, also ends the requests, which are answered with 503."""
        if self.should_exit:
            self.second_signal = sig
            self.force_exit = True
            for task in self.server_state.tasks:
                task.cancel()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if count := len(self.server_state.tasks):
            answers = f"{count} more answer{'' if count == 1 else 's'}"
            say(f"stopping after {answers}. Another Ctrl-C stops at once")
        await super().shutdown(sockets)
