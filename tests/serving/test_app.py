"""What the service answers, over HTTP, with a model that reverses words."""

import json
import re

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.stand_in import SECRET, StandIn, running, wait_for
from transformer_mt.serving import app, batching
from transformer_mt.serving.app import Access


@pytest.fixture(scope="module")
def service():
    with running() as found:
        yield found


def test_a_string_keeps_its_line_ends(service):
    text = "a b\r\n\nc d\re\n"
    answer = service.translate(text).json()
    assert answer["model"] == "demo"
    assert answer["text"] == "b a\r\n\nd c\re\n"
    assert answer["translations"] == [{"text": t} for t in ("b a", "", "d c", "e")]


@pytest.mark.parametrize("text", ["", "\n", "a\n", "a\n\n", "a", "\u2028a\x85b"])
def test_the_ends_of_texts(service, text):
    answer = service.translate(text).json()
    assert answer["text"] == text
    assert len(answer["translations"]) == max(1, text.count("\n"))


def test_a_list_has_one_line_per_item(service):
    answer = service.translate(["a b", "", "c"]).json()
    assert "text" not in answer
    assert answer["translations"] == [{"text": "b a"}, {"text": ""}, {"text": "c"}]
    assert service.translate([]).json()["translations"] == []


def test_what_is_asked_for_is_there(service):
    (line,) = service.translate("a bc", scores=True, alignment=True, n_best=2).json()[
        "translations"
    ]
    best = {
        "text": "bc a",
        "score": -1.2346,
        "alignment": [[0, 1], [1, 0]],
        "words": [[0, 2], [3, 4]],
        "parts": [[0, 4]],
    }
    assert line["outputs"][0] == best
    assert line["outputs"][1]["text"] == "bc a!" and line["outputs"][1]["score"] == -2.2346
    places = {"source_words": [[0, 1], [2, 4]], "source_parts": [[0, 4]]}
    assert line == {**best, **places, "outputs": line["outputs"]}
    (line,) = service.translate("a bc", n_best=1).json()["translations"]
    assert line == {"text": "bc a", "outputs": [{"text": "bc a"}]}


def test_what_is_wrong_with_a_line_is_in_the_answer(service):
    assert service.translate(["ODD"]).json()["warnings"] == ["line 1: odd"]
    assert len(service.translate(["ODD"] * 30).json()["warnings"]) == 10
    assert "warnings" not in service.translate(["a"]).json()


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"", 422, "expected a JSON object"),
        (b"\xff\xfe", 400, "not JSON"),
        (b'{"text": "\\ud800"}', 422, "text: expected a string"),
        (b"[" * 1_000, 400, "not JSON"),
        (b'{"text": ["' + b'","' * 1_000 + b'"]}', 422, "a request may have 1,000 lines"),
        (b'{"text": "' + b"\\n" * 1_001 + b'"}', 422, "a request may have 1,000 lines"),
        (b'{"text": NaN}', 422, "text: expected a string or a list of strings"),
        (b'\xef\xbb\xbf{"text": 1}', 422, "text: expected a string"),
        (b"[]", 422, "expected a JSON object"),
        (b"null", 422, "expected a JSON object"),
        (b"{}", 422, "text: missing"),
        (b'{"text": 1}', 422, "text: expected a string or a list of strings"),
        (b'{"text": null}', 422, "text: expected a string or a list of strings"),
        (b'{"text": ["a", 1]}', 422, "text[1]: expected a string"),
        (b'{"text": ["a", "b\\nc"]}', 422, "text[1]: an item of a list is one line"),
        (b'{"text": "a", "n_best": "2"}', 422, "n_best: '2': expected a whole number"),
        (b'{"text": "a", "n_best": true}', 422, "n_best: True: expected a whole number"),
        (b'{"text": "a", "n_best": 0}', 422, "n_best: 0: expected at least 1"),
        (b'{"text": "a", "n_best": 1e400}', 422, "n_best:"),
        (b'{"text": "a", "beam": 3}', 422, "beam: unknown key; did you mean beam_size"),
        (b'{"text": "a", "x\\u001b[2J": 3}', 422, "x\\x1b[2J: unknown key"),
        (
            b'{"text": "a", "model": "other"}',
            422,
            "there is no model of this name. There are: demo",
        ),
        (b'{"text": "WRONG"}', 422, "n_best: 99"),
    ],
)
def test_what_is_wrong_is_named(service, body, status, message):
    answer = service.client.post(
        "/translate", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == status
    assert list(answer.json()) == ["detail"] and message in answer.json()["detail"]


@pytest.mark.parametrize(
    ("line", "status", "seconds"),
    [("OVERLOADED", 429, "7"), ("LATE", 503, "1"), ("LOST", 503, "1")],
)
def test_what_passes_is_told_with_a_time(service, line, status, seconds):
    answer = service.translate(line)
    assert answer.status_code == status
    assert answer.headers["retry-after"] == seconds and answer.json()["detail"]


def test_an_error_of_the_program_is_answered_and_named_without_text(monkeypatch, capsys):
    # A service of its own: the line of a request is printed after its answer, so the last line of
    # another test's request could come between.
    with running() as service:
        answer = service.translate("BUG")
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert SECRET not in answer.text
        report, line = service.log(2)
        assert re.fullmatch(
            r"internal error: ZeroDivisionError in stand_in.py, line \d+\. .*", report
        )
        assert "POST /translate 503" in line
        assert capsys.readouterr().err == ""
        monkeypatch.setenv("TRANSFORMER_MT_DEBUG", "1")
        service.translate("BUG")
        assert SECRET in capsys.readouterr().err


def test_addresses_and_methods_that_do_not_exist(service):
    answer = service.client.get("/translate")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    for path in ("/nothing", "/page/../app.py", "/..%2fapp.py", "/attention/x", "/docs/x"):
        answer = service.client.get(path)
        assert answer.status_code == 404 and answer.json()["detail"], path
    assert service.client.delete("/").status_code == 405
    assert service.client.options("/translate").status_code == 405


def test_the_page_and_its_files(service):
    page = service.client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-cache"
    again = service.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304 and not again.content
    head = service.client.head("/")
    assert head.headers["content-length"] == page.headers["content-length"] and not head.content
    for path in app.PAGE.iterdir():
        file = service.client.get(f"/{path.name}")
        assert file.content == path.read_bytes()


def test_health_says_when_a_model_is_not_ready(service):
    assert service.client.get("/health").json() == {"status": "ok"}
    assert service.client.head("/health").status_code == 200
    service.model.is_ready = False
    try:
        answer = service.client.get("/health")
    finally:
        service.model.is_ready = True
    assert answer.status_code == 503 and answer.json() == {"status": "loading"}


def test_a_model_is_chosen_by_name():
    with running(StandIn("one"), StandIn("two")) as service:
        assert service.translate("a", model="two").json()["model"] == "two"
        answer = service.translate("a")
        assert answer.status_code == 422 and "There are several: one, two" in answer.text
        cards = service.client.get("/models").json()["models"]
        assert [card["name"] for card in cards] == ["one", "two"]
        assert cards[0]["test"] == {"metric": "BLEU", "score": 39.1, "interval": None}


def test_attention_pages_have_a_secret_address_and_a_policy_of_their_own(service, monkeypatch):
    def ask() -> str:
        answer = service.client.post("/attention", json={"source": "a b", "target": "c"})
        return answer.json()["url"]

    first = ask()
    assert re.fullmatch(r"/attention/[\w-]{22}", first)
    page = service.client.get(first)
    assert "<title>a b - c</title>" in page.text
    policy = page.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy and "allow-same-origin" not in policy
    # The address is a secret, so that it is not in the log.
    wait_for(lambda: any("GET /attention/{name} 200" in line for line in service.said))
    assert not any(first in line for line in service.said)
    # As many are kept as have room.
    monkeypatch.setattr(app, "KEPT_BYTES", 3 * len(page.content))
    later = [ask() for _ in range(3)]
    assert service.client.get(first).status_code == 404
    assert all(service.client.get(url).status_code == 200 for url in later)
    monkeypatch.setattr(app, "KEPT_SECONDS", 0)
    answer = service.client.get(later[-1])
    assert answer.status_code == 404 and "gone" in answer.json()["detail"]


MEGABYTE = 1 << 20


def test_the_largest_request_is_read(service):
    """Brackets, commas and quotes in strings are no values."""
    lines = ['a,[{"\\' * 50] * 1_000
    assert len(service.translate(lines).json()["translations"]) == 1_000
    assert service.translate("\n".join(lines) + "\n").status_code == 200


def test_one_error_of_many_is_enough(service):
    many_items = b'{"text": [' + b",".join([b"1"] * 1_000) + b"]}"
    many_keys = b'{"text": "a"' + b"".join(b',"k%d":1' % n for n in range(1_000)) + b"}"
    for body, message in ((many_items, "text[0]: expected a string"), (many_keys, "k0: unknown")):
        answer = service.client.post(
            "/translate", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 422
        assert message in answer.json()["detail"] and len(answer.content) < 1000
    # A key that is wrong hides none that is right.
    answer = service.client.post("/translate", json={"a": 1, "b": 1, "c": 1, "d": 1, "text": 2})
    assert "a: unknown" in answer.text and "text: expected" in answer.text


def test_a_mark_before_json_is_read(service):
    content = b'\xef\xbb\xbf{"text": "a b"}'
    headers = {"Content-Type": "application/json"}
    answer = service.client.post("/translate", content=content, headers=headers)
    assert answer.json()["text"] == "b a"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("M" * 60_000, "/health", {}),
        ("GET", "/\\ud800%ED%A0%80%00%ff", {}),
        ("GET", "/" + "a" * 60_000, {}),
        ("GET", "/health", {"Host": b"\xff\xed\xa0\x80"}),
        ("GET", "/health", {"Origin": b"http://\xff\xed\xa0\x80"}),
    ],
)
def test_odd_requests_are_answered_and_logged_in_short(method, path, headers):
    with running() as service:
        answer = service.client.request(method, path, headers=headers)
        assert answer.status_code in (200, 400, 404, 405)
        (line,) = service.log(1)
        assert len(line) < 400 and line.isprintable()
        assert service.client.get("/metrics").status_code == 200


def test_the_description_is_complete_and_its_examples_are_right(service):
    description = service.client.get("/openapi.json").json()
    paths = description["paths"]
    assert set(paths) == {
        "/translate",
        "/parts",
        "/attention",
        "/attention/{name}",
        "/models",
        "/health",
        "/metrics",
    }
    for path in ("/translate", "/parts", "/attention"):
        content = paths[path]["post"]["requestBody"]["content"]["application/json"]
        name = content["schema"]["$ref"].rpartition("/")[2]
        schema = description["components"]["schemas"][name]
        for example in schema["examples"]:
            assert set(example) <= set(schema["properties"])
            assert service.client.post(path, json=example).status_code == 200
        assert {"200", "default"} == set(paths[path]["post"]["responses"])
    schemas = description["components"]["schemas"]
    answer = service.translate("ODD", n_best=1, scores=True, alignment=True).json()
    assert set(answer) == set(schemas["TranslateAnswer"]["properties"])
    line = answer["translations"][0]
    assert set(line) == set(schemas["TranslationAnswer"]["properties"])
    assert set(line["outputs"][0]) == set(schemas["OutputAnswer"]["properties"])
    card = service.client.get("/models").json()["models"][0]
    assert set(card) == set(schemas["Card"]["properties"])
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(description)))
    assert references <= set(schemas)
    assert "securitySchemes" not in description["components"]


def test_the_description_names_the_token():
    with running(access=Access(token="secret")) as service:
        description = service.client.get("/openapi.json").json()
        assert description["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
        assert "security" in description["paths"]["/models"]["get"]
        assert "security" not in description["paths"]["/health"]["get"]


def test_the_page_of_the_description_fetches_nothing_from_elsewhere(service):
    page = service.client.get("/docs")
    links = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    for link in links:
        assert link.startswith("/docs") and service.client.get(link).status_code == 200
    assert "http" not in re.sub(r"<!--.*?-->", "", page.text)
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    assert "'unsafe-inline'" not in page.headers["content-security-policy"].split("style-src")[0]


def test_metrics_count_what_happens():
    model = StandIn()
    with running(model) as service:
        service.translate("a\nb")
        service.translate("OVERLOADED")
        for path in ("/a", "/b", "/c"):
            service.client.get(path)
        service.metrics.batch("demo", 5)
        model.workers.crashes = 3
        model.waiting = 4
        answer = service.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        families = list(text_string_to_metric_families(answer.text))
        values = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(name, **labels):
        return values[(f"transformer_mt_{name}", *sorted(labels.items()))]

    assert value("requests_total", endpoint="/translate", status="200") == 1
    assert value("requests_total", endpoint="/translate", status="429") == 1
    # Paths that do not exist have one name, so that nobody can make ever more counters.
    assert value("requests_total", endpoint="other", status="404") == 3
    assert value("request_seconds_count", endpoint="/translate") == 2
    assert value("lines_total", model="demo") == 2
    assert value("batch_sentences_sum", model="demo") == 5
    assert value("worker_crashes_total", model="demo") == 3
    assert value("waiting_sentences", model="demo") == 4
    assert value("model_ready", model="demo") == 1


def test_the_log_has_one_line_per_request_and_no_text():
    with running() as service:
        service.translate("geheim\ngeheim", n_best=1)
        service.client.get("/nothing%0A%1b[2J/ü?q=geheim")
        service.client.get("/" + "x" * 5000)
        lines = service.log(3)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d 127\.0\.0\.1 POST /translate 200 \d+ ms 2 lines", lines[0]
    )
    assert re.search(r" GET /nothing%0A%1B\[2J/%C3%BC 404 \d+ ms$", lines[1], re.IGNORECASE)
    assert len(lines[2]) < 200
    assert "geheim" not in "".join(lines)


def test_the_log_has_the_text_if_that_is_asked_for():
    with running(log_text=True) as service:
        service.translate("ein\nText")
        assert service.log(1)[0].endswith(r'2 lines "ein\nText"')


def test_the_work_of_a_client_that_is_gone_is_dropped():
    with running() as service:
        body = b'{"text": "WAIT"}'
        head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with service.connect() as connection:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert service.model.began.acquire(timeout=30)
        wait_for(lambda: service.model.cancelled == 1)
        assert " POST /translate 499 " in service.log(1)[0]
        assert service.translate("a").status_code == 200


def test_many_clients_at_once_are_answered_and_more_are_told_to_wait(monkeypatch):
    monkeypatch.setattr(batching, "MOST", 70)
    with running() as service:
        limits = httpx.Limits(max_connections=None)
        sockets = []
        body = b'{"text": ["WAIT", "a b"]}'
        request = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        request += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _ in range(70):
            sockets.append(service.connect())
            sockets[-1].sendall(request + body)
        for _ in sockets:
            assert service.model.began.acquire(timeout=30)
        with httpx.Client(limits=limits, trust_env=False) as client:
            answer = client.post(f"{service.url}/translate", json={"text": "a"})
            assert answer.status_code == 429 and "retry-after" in answer.headers
            assert client.get(f"{service.url}/health").status_code == 200
        service.model.go_on.set()
        for connection in sockets:
            with connection:
                received = b""
                while part := connection.recv(1 << 16):
                    received += part
            assert received.startswith(b"HTTP/1.1 200") and b'"b a"' in received
