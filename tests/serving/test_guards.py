"""Who may use the service, and how requests have to arrive."""

import pytest

from tests.serving.stand_in import running, wait_for
from transformer_mt.commands.serve import read_origin
from transformer_mt.serving.app import Access
from transformer_mt.serving.batching import Limits
from transformer_mt.utils.errors import UsageError

TOKEN = "s3cret-Token"
ELSEWHERE = "https://allowed.example"
HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def service():
    access = Access((*Access.hosts, "mine.example"), (ELSEWHERE,))
    with running(access=access, limits=Limits(max_body=1000)) as found:
        yield found


@pytest.fixture(scope="module")
def closed_service():
    with running(access=Access(token=TOKEN)) as found:
        yield found


# ---- Host and Origin ----


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "127.0.0.1", "[::1]:8000", "mine.example:9"],
)
def test_names_of_the_service(service, host):
    assert service.client.get("/models", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "mine.example.evil.example",
        "localhost:8000:80",
        "user@localhost",
        "[::1",
        "[::1]evil",
        "",
    ],
)
def test_other_names_are_refused_everywhere(service, host):
    for path in ("/", "/models", "/health", "/docs", "/nothing"):
        answer = service.client.get(path, headers={"Host": host})
        assert answer.status_code == 400 and "host" in answer.text, path


def test_pages_of_the_service_itself_may_ask(service):
    for origin in (service.url, service.url.replace("http:", "https:")):
        answer = service.client.get("/models", headers={"Origin": origin})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "",
        "http://localhost:1",
        "http://[bad",
        "file://",
        ELSEWHERE + ".x",
    ],
)
def test_pages_of_others_are_refused(service, origin):
    """A browser asks before it sends JSON (test_only_json_is_read: nothing else is read), and shows
    no answer to a page that the answer does not name."""
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    assert service.client.options("/translate", headers=headers).status_code == 400
    answer = service.client.get("/models", headers={"Origin": origin})
    assert "access-control-allow-origin" not in answer.headers


def test_pages_of_an_allowed_origin_may_ask(service):
    headers = {"Origin": ELSEWHERE}
    preflight = service.client.options(
        "/translate",
        headers={
            **headers,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ELSEWHERE
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    answer = service.client.post("/translate", json={"text": "OVERLOADED"}, headers=headers)
    assert answer.status_code == 429
    assert answer.headers["access-control-allow-origin"] == ELSEWHERE
    assert answer.headers["access-control-expose-headers"] == "Retry-After"
    assert "Origin" in answer.headers["vary"]
    # An origin is not a name of the service by itself.
    other = {"Origin": ELSEWHERE, "Host": "evil.example"}
    assert service.client.get("/models", headers=other).status_code == 400


def test_origins_are_read_as_browsers_send_them():
    assert read_origin("HTTPS://Example.com:443/") == ("https://example.com", "example.com")
    for name in ("example.com", "[::1]"):
        assert read_origin(f"http://{name}:8080") == (f"http://{name}:8080", name)
    for text in (
        "*",
        "null",
        "example.com",
        "ftp://a",
        "http://",
        "http://a/b",
        "http://u@a",
        "//[x",
        "http://\xe4.example",
        "http://a\nb",
        "http://*.example",
        "http://a:700000",
    ):
        with pytest.raises(UsageError, match="--allow-origin"):
            read_origin(text)


# ---- The token ----


def test_without_the_token_only_what_is_no_secret_is_there(closed_service):
    client = closed_service.client
    for path in ("/", "/health", "/docs", "/openapi.json", "/docs/swagger-ui.css"):
        assert client.get(path).status_code == 200, path
    for path in ("/models", "/metrics", "/nothing", "/health/", "/Models", "/docs/nothing"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/translate", "/attention"):
        assert client.post(path, json={"text": "a"}).status_code == 401


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer  {TOKEN}", 200),
        (TOKEN, 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN.lower()}", 401),
        ("Bearer", 401),
        ("Bearer \xe4", 401),
        ("", 401),
    ],
)
def test_the_token_must_be_right(closed_service, value, status):
    headers = {"Authorization": value.encode("latin-1")}
    assert closed_service.client.get("/models", headers=headers).status_code == status


def test_an_attention_page_needs_its_address_only(closed_service):
    answer = closed_service.client.post(
        "/attention",
        json={"source": "a", "target": "b"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    assert closed_service.client.get(answer.json()["url"]).status_code == 200


# ---- Headers of answers ----


def test_every_answer_is_safe_in_a_browser(service):
    paths = ["/", "/models", "/health", "/metrics", "/docs", "/openapi.json", "/nothing"]
    for path in paths:
        headers = service.client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers
    assert "unsafe" not in service.client.get("/").headers["content-security-policy"]
    assert service.translate("a").headers["cache-control"] == "no-store"


# ---- Bodies ----


def test_only_json_is_read(service):
    # A page of another site can send these types without being asked for permission.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = service.client.post(
            "/translate", content=b'{"text": "a"}', headers={"Content-Type": kind}
        )
        assert answer.status_code == 415 and "application/json" in answer.json()["detail"]
    kind = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert service.client.post("/translate", content=b'{"text":"a"}', headers=kind).is_success


def test_the_greatest_body_is_read_and_one_byte_more_is_not(service):
    body = b'{"text":"%s"}' % (b"a" * (1000 - 11))
    assert len(body) == 1000
    for content in (body, iter([body[:500], body[500:]])):  # with a length, and in chunks
        answer = service.client.post(
            "/translate", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 200
    for content in (body + b" ", iter([body, b" "])):
        answer = service.client.post(
            "/translate", content=content, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 413 and "1,000 bytes" in answer.json()["detail"]


@pytest.mark.parametrize("length", [b"1001", b"9" * 18, b"9" * 20])
def test_a_large_body_is_refused_before_it_comes(service, length):
    with service.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: " + length + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_a_client_that_sends_on_still_gets_the_refusal(service):
    size = 5_000_000
    with service.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % size)
        wait_for(lambda: connection.recv(5) == b"HTTP/")
        try:
            for _ in range(50):
                connection.sendall(b" " * (size // 50))
        except OSError:
            pass
        assert connection.recv(7) == b"1.1 413"


def test_an_endless_body_in_chunks_is_refused(service):
    with service.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            connection.sendall(b"200\r\n" + b" " * 0x200 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
