"""Connections that are slow, idle, broken or too many, and how the service starts and stops."""

import re

import pytest

from tests.serving.stand_in import rest_of, running
from transformer_mt.serving import server
from transformer_mt.serving.batching import Limits
from transformer_mt.utils.errors import UsageError, UserError

HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


# ---- Connections ----


@pytest.fixture(scope="module")
def service():
    with running() as found:
        yield found


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
def test_what_is_not_http_is_answered_and_closed(service, garbage):
    received = service.answers(garbage)
    assert b"HTTP/1.1 400" in received or received == b""
    assert b" 500 " not in received
    assert service.client.get("/health").status_code == 200


def test_a_request_with_two_lengths_is_the_last_of_its_connection(service):
    """RFC 9112, section 6.1: a proxy in front may see another end of it."""
    body = b'f\r\n{"text": "a b"}\r\n0\r\n\r\n'
    lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    received = service.answers(HEAD + lengths + body + GET)
    assert received.count(b"HTTP/1.1") == 1 and b"connection: close" in received.lower()


def test_a_websocket_is_not_there(service):
    upgrade = GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    with service.connect() as connection:
        connection.sendall(upgrade)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


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
