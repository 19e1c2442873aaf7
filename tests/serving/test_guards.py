"""Who may use the service, how requests have to arrive, and at which addresses it listens."""

import pytest

from tests.serving.stand_in import running, wait_for
from transformer_mt.commands.serve import read_origin
from transformer_mt.serving import server
from transformer_mt.serving.batching import Limits
from transformer_mt.serving.guard import Access
from transformer_mt.serving.tokens import Tokens
from transformer_mt.utils.errors import UsageError, UserError

TOKEN = "s3cret-Token"
ELSEWHERE = "https://allowed.example"
HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
# What LibreTranslate's clients send as forms.
FORMS: dict[str, dict] = {
    "/translate": {"data": {"q": "a b", "source": "en", "target": "de"}},
    "/translate_file": {
        "data": {"source": "en", "target": "de"},
        "files": {"file": ("a.txt", b"a b\n")},
    },
    "/detect": {"data": {"q": "a b"}},
}
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def service():
    access = Access((*Access.hosts, "mine.example"), (ELSEWHERE,))
    with running(access=access, limits=Limits(max_body=1000)) as service:
        yield service


@pytest.fixture(scope="module")
def closed_service():
    with running(access=Access(tokens=Tokens({"": TOKEN}))) as service:
        yield service


# ---- Host and Origin ----


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "localhost:8000", "127.0.0.1", "[::1]:8000")),
        ("mine.example:9", 200),
        *((f"{host}evil.example", 400) for host in ("", "localhost.", "mine.example.")),
        *((host, 400) for host in ("localhost:8000:80", "user@localhost", "[::1", "[::1]evil", "")),
    ],
)
def test_names_of_the_service(service, host, status):
    for path in ("/", "/models", "/health", "/docs", "/languages"):
        answer = service.client.get(path, headers={"Host": host})
        assert answer.status_code == status, path
    for path, form in FORMS.items():
        answer = service.client.post(path, **form, headers={"Host": host})
        assert answer.status_code == (403 if (path, status) == ("/detect", 200) else status), path


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "null", "", "http://localhost:1", "http://[bad", "file://"),
        ELSEWHERE + ".x",
    ],
)
def test_pages_of_others_are_refused(service, origin):
    """A browser asks before it sends JSON, but not before it sends a form, and shows no answer to a
    page that the answer does not name."""
    headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    assert service.client.options("/translate", headers=headers).status_code == 400
    answer = service.client.get("/models", headers={"Origin": origin})
    assert "access-control-allow-origin" not in answer.headers
    for path, form in FORMS.items():
        answer = service.client.post(path, **form, headers={"Origin": origin})
        assert answer.status_code == 403 and "other sites" in answer.json()["error"]


def test_pages_of_an_allowed_origin_may_ask(service):
    headers = {"Origin": ELSEWHERE}
    asking = {"Method": "POST", "Headers": "authorization,content-type"}
    asking = {f"Access-Control-Request-{name}": value for name, value in asking.items()}
    preflight = service.client.options("/translate", headers=headers | asking)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ELSEWHERE
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    answer = service.client.post("/translate", json={"text": "OVERLOADED"}, headers=headers)
    assert answer.status_code == 429
    assert answer.headers["access-control-allow-origin"] == ELSEWHERE
    assert answer.headers["access-control-expose-headers"] == "Retry-After"
    for path, form in FORMS.items():
        for origin in (ELSEWHERE, service.url.rstrip("/")):
            answer = service.client.post(path, **form, headers={"Origin": origin})
            assert answer.status_code == (403 if path == "/detect" else 200)
            assert "sites" not in answer.text
    # An origin is not a name of the service by itself.
    other = {"Origin": ELSEWHERE, "Host": "evil.example"}
    assert service.client.get("/models", headers=other).status_code == 400


def test_origins_are_read_as_browsers_send_them():
    assert read_origin("HTTPS://Example.com:443/") == ("https://example.com", "example.com")
    for name in ("example.com", "[::1]"):
        assert read_origin(f"http://{name}:8080") == (f"http://{name}:8080", name)
    for scheme in ("chrome-extension", "moz-extension", "safari-web-extension"):
        origin = f"{scheme}://0a1b-2c3d"
        assert read_origin(origin) == (origin, "0a1b-2c3d")
    wrong = ["*", "null", "example.com", "ftp://a", "http://", "http://a/b", "http://u@a", "//[x"]
    for text in [*wrong, "http://\xe4.example", "http://a\nb", "http://*.example", "http://a:x"]:
        with pytest.raises(UsageError, match="--allow-origin"):
            read_origin(text)


# ---- The token ----


def test_without_the_token_only_what_is_no_secret_is_there(closed_service):
    client = closed_service.client
    for path in ("/", "/health", "/docs", "/openapi.json", "/docs/swagger-ui.css", "/languages"):
        assert client.get(path).status_code == 200, path
    for path in ("/models", "/metrics", "/nothing", "/health/", "/Models", "/docs/nothing"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/translate", "/attention"):
        assert client.post(path, json={"text": "a"}).status_code == 401
    description = client.get("/openapi.json").json()
    assert description["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert "security" in description["paths"]["/models"]["get"]
    assert "security" not in description["paths"]["/health"]["get"]


@pytest.mark.parametrize(
    ("value", "status"),
    [
        *((f"{scheme} {TOKEN}", 200) for scheme in ("Bearer", "bearer ")),
        *((value, 401) for value in (TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer \xe4", "")),
        *((f"Bearer {token}", 401) for token in (TOKEN + "x", TOKEN[:-1], TOKEN.lower())),
    ],
)
def test_the_token_must_be_right(closed_service, value, status):
    headers = {"Authorization": value.encode("latin-1")}
    assert closed_service.client.get("/models", headers=headers).status_code == status


def test_an_attention_page_needs_its_address_only(closed_service):
    headers, pair = {"Authorization": f"Bearer {TOKEN}"}, {"source": "a", "target": "b"}
    answer = closed_service.client.post("/attention", json=pair, headers=headers)
    assert closed_service.client.get(answer.json()["url"]).status_code == 200


# ---- Headers and bodies ----


def test_every_answer_is_safe_in_a_browser(service):
    for path in ("/", "/models", "/health", "/metrics", "/docs", "/openapi.json", "/nothing"):
        headers = service.client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    assert "unsafe" not in service.client.get("/").headers["content-security-policy"]
    assert service.translate("a").headers["cache-control"] == "no-store"


def test_only_json_is_read(service):
    # A page of another site can send these types without being asked for permission.
    form_kinds = ("application/x-www-form-urlencoded", "multipart/form-data")
    wrong = [("/translate", kind) for kind in ("text/plain", "")]
    wrong += [("/parts", kind) for kind in ("text/plain", "", *form_kinds)]
    for path, kind in wrong:
        answer = service.post(b'{"text": "a"}', path, kind=kind)
        assert answer.status_code == 415 and "application/json" in answer.json()["detail"]
    assert service.post(b'{"text":"a"}', kind="Application/JSON; charset=utf-8").is_success
    assert service.post(b'\xef\xbb\xbf{"text": "a b"}').json()["text"] == "B A"


def test_the_greatest_body_is_read_and_one_byte_more_is_not(service):
    body = b'{"text":"%s"}' % (b"a" * (1000 - 11))
    for content in (body, iter([body[:500], body[500:]])):  # with a length, and in chunks
        assert service.post(content).status_code == 200
    for content in (body + b" ", iter([body, b" "])):
        answer = service.post(content)
        assert answer.status_code == 413 and "1,000 bytes" in answer.json()["detail"]


@pytest.mark.parametrize("path", FORMS)
def test_a_large_form_is_not_read(service, path):
    form = {**FORMS[path], "data": FORMS[path]["data"] | {"q": "a" * 1000}}
    whole = service.client.build_request("POST", path, **form)
    headers = {"Content-Type": whole.headers["content-type"]}
    body = whole.read()
    for content in (body, iter([body])):  # with a length, and in chunks
        answer = service.client.post(path, content=content, headers=headers)
        if path == "/detect" and not isinstance(content, bytes):
            assert answer.status_code == 403  # Its body is left alone.
        else:
            assert answer.status_code == 413 and "1,000 bytes" in answer.json()["error"]
    # Nor is one of another kind.
    answer = service.post(b"q=a", path, "text/plain")
    assert answer.status_code == 415


@pytest.mark.parametrize("length", [b"1001", b"9" * 20, b"5000000"])
def test_a_large_body_is_refused_before_it_comes(service, length):
    with service.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: " + length + b"\r\n\r\n")
        wait_for(lambda: connection.recv(5) == b"HTTP/")
        try:
            for _ in range(50):
                connection.sendall(b" " * 100_000)
        except OSError:
            pass
        assert connection.recv(7) == b"1.1 413"


# ---- Connections ----


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"hello\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        GET[:-2] + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        GET + b"nonsense\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_and_closed(service, garbage):
    received = service.answers(garbage)
    assert b"HTTP/1.1 400" in received or received == b""
    assert b" 500 " not in received
    assert service.client.get("/health").status_code == 200


def test_a_request_with_two_ends_closes_its_connection(service):
    """A proxy in front may take what follows the one end for another request (RFC 9112, 6.1)."""
    both = HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    assert service.answers(both + GET).count(b"HTTP/1.1 ") == 1


# ---- Addresses ----


def test_a_taken_port_is_an_error():
    taken = "--port .*: another program uses this port"
    with server.bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(UserError, match=taken):
            server.bind("127.0.0.1", port)
