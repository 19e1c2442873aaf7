"""Connections that are slow, idle, broken or too many, and how the service starts and stops."""

import json
import re
import socket
import time

import httpx
import pytest

from tests.serving.stand_in import rest_of, running, wait_for
from transformer_mt.serving import server
from transformer_mt.serving.limits import Limits
from transformer_mt.utils.errors import UsageError, UserError

HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


# ---- Connections ----


@pytest.fixture(scope="module")
def impatient():
    """A service that waits for a header for a short time only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "HEADER_SECONDS", 0.3)
        patch.setattr(server, "LINGER_SECONDS", 0.3)
        patch.setattr(server, "IDLE_SECONDS", 1)
        with running() as found:
            yield found


@pytest.mark.parametrize("part", [b"", b"G", b"GET / HTTP/1.1\r\nHost: loc"])
def test_a_header_that_does_not_come_is_not_waited_for(impatient, part):
    assert impatient.answers(part) == b""


def test_a_header_that_comes_byte_by_byte_is_not_waited_for(impatient):
    with impatient.connect() as connection:
        connection.sendall(GET)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.settimeout(0.05)
        ended = False
        for _ in range(100):
            try:
                connection.sendall(b"G")
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
            if ended:
                return
    pytest.fail("the connection was kept")


def test_a_connection_without_requests_is_closed(impatient):
    with impatient.connect() as connection:
        connection.sendall(GET + GET)
        assert rest_of(connection).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        GET + b"nonsense\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_and_closed(impatient, garbage):
    received = impatient.answers(garbage)
    assert b"HTTP/1.1 400" in received or received == b""
    assert b" 500 " not in received
    if b"HTTP/1.1 400" in received:
        body = received.rpartition(b"\r\n\r\n")[2]
        assert "this is not HTTP" in json.loads(body)["detail"]
    assert impatient.client.get("/health").status_code == 200


def test_a_request_with_two_lengths_is_the_last_of_its_connection(impatient):
    """RFC 9112, section 6.1: a proxy in front may see another end of it."""
    body = b'f\r\n{"text": "a b"}\r\n0\r\n\r\n'
    lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    received = impatient.answers(HEAD + lengths + body + GET)
    assert received.count(b"HTTP/1.1") == 1 and b"connection: close" in received.lower()


def test_a_websocket_is_not_there(impatient):
    upgrade = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert impatient.answers(upgrade).startswith(b"HTTP/1.1 200")


def test_a_client_that_takes_no_answer_is_dropped(monkeypatch):
    monkeypatch.setattr(server, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(server, "IDLE_SECONDS", 1)
    with running() as service:
        body = json.dumps({"text": "a" * 1_000_000}).encode()
        request = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        connection = socket.socket()
        # A small buffer on this side, and no reading.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        with connection:
            connection.connect(("127.0.0.1", service.port))
            try:
                for _ in range(8):  # The answers fill the buffers.
                    connection.sendall(request)
            except OSError:
                pass
            wait_for(lambda: not service.server.server_state.connections)


def test_a_client_that_is_gone_before_the_end_of_its_refusal_leaves_nothing(monkeypatch):
    close = server._Transport.close

    def close_late(transport):
        time.sleep(0.3)  # The client closes the connection meanwhile.
        close(transport)

    monkeypatch.setattr(server._Transport, "close", close_late)
    monkeypatch.setattr(server, "LINGER_SECONDS", 0.3)
    with running() as service:
        with service.connect() as connection:
            connection.sendall(HEAD + b"Content-Length: 9000000\r\n\r\n" + bytes(100_000))
            # What it does not read makes the system reset the connection.
            assert connection.recv(12) == b"HTTP/1.1 413"
        wait_for(lambda: not service.server.server_state.connections)


def test_idle_connections_do_not_keep_others_out(monkeypatch):
    monkeypatch.setattr(server, "CONNECTIONS", 20)
    with running() as service:
        head = HEAD + b"Content-Length: 20\r\n\r\n"
        body = b'{"text": "WAIT"}'
        busy = service.connect()
        busy.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert service.model.began.acquire(timeout=30)
        idle = []
        for number in range(60):
            idle.append(service.connect())
            idle[-1].sendall(b"" if number % 2 else head)
        for _ in range(3):
            with httpx.Client(trust_env=False) as client:
                answer = client.post(f"{service.url}/translate", json={"text": "a"}, timeout=30)
                assert answer.status_code == 200
        assert len(service.server.server_state.connections) <= 20
        # The one that waits for its answer was not closed.
        service.model.go_on.set()
        assert busy.recv(1 << 16).startswith(b"HTTP/1.1 200")
        for connection in (busy, *idle):
            connection.close()
        wait_for(lambda: not service.server.server_state.connections)


# ---- Addresses ----


def test_a_taken_port_is_an_error():
    with server.bind("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: another program uses this port"):
            server.bind("127.0.0.1", port)


def test_of_two_that_start_together_the_second_gets_the_same_error():
    with server.bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with server.bind("127.0.0.1", port) as second:  # Nobody listens yet.
            server.listen(first)
            with pytest.raises(UserError, match=f"--port {port}: another program uses this port"):
                server.listen(second)


def test_addresses_that_are_not_ours():
    for host in ("nowhere.invalid", "192.0.2.1", "x" * 300, "1.2.3.4.5"):
        with pytest.raises(UsageError, match="--host"):
            server.bind(host, 0)


@pytest.mark.parametrize(
    ("host", "is_loopback"), [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_what_others_can_reach(host, is_loopback):
    with server.bind(host, 0) as listening:
        assert server.is_loopback(listening) == is_loopback
        assert re.fullmatch(r"http://[\w.:\[\]-]+:\d+", server.address(listening))


# ---- Stopping ----


def test_requests_that_have_begun_are_finished_and_new_ones_are_not_taken():
    with running() as service:
        body = b'{"text": ["WAIT", "a b"]}'
        head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
        with service.connect() as waiting, service.connect() as sending, service.connect() as idle:
            waiting.sendall(head + body)
            sending.sendall(head + body[:10])
            assert service.model.began.acquire(timeout=30)
            service.server.should_exit = True
            assert idle.recv(1) == b""
            with pytest.raises(OSError):
                service.connect().close()
            sending.sendall(body[10:])
            service.model.go_on.set()
            for connection in (waiting, sending):
                received = rest_of(connection)
                assert received.startswith(b"HTTP/1.1 200") and b'"b a"' in received


def test_requests_that_take_too_long_are_answered_at_the_end():
    with running(limits=Limits(timeout=1)) as service:
        body = b'{"text": "WAIT"}'
        with service.connect() as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert service.model.began.acquire(timeout=30)
            service.server.should_exit = True
            assert rest_of(connection).startswith(b"HTTP/1.1 503")
        service.thread.join(30)
        assert not service.thread.is_alive()
