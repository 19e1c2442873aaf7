"""What the service answers, over HTTP, with a model that reverses words."""

import json
import re
from threading import Event

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.stand_in import SECRET, StandIn, rest_of, running, wait_for
from transformer_mt.serving import app, kept
from transformer_mt.serving.batching import Limits
from transformer_mt.serving.guard import KINDS

HEAD = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"text": ["WAIT", "a b"]}'
WAITING = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


@pytest.fixture(scope="module")
def service():
    with running() as service:
        yield service


@pytest.fixture
def fresh():
    """A service whose log has nothing yet, and whose model waits if a line is WAIT."""
    model = StandIn()
    model.held["WAIT"] = Event()
    with running(model) as service:
        yield service


# ---- Translations ----


def test_a_string_keeps_its_line_ends(service):
    answer = service.translate("a b\r\n\nc d\re\n").json()
    assert answer["model"] == "demo"
    assert answer["text"] == "B A\r\n\nD C\rE\n"
    assert answer["translations"] == [{"text": text} for text in ("B A", "", "D C", "E")]


def test_a_list_has_one_line_per_item(service):
    answer = service.translate(["a b", "", "c"]).json()
    assert "text" not in answer
    assert answer["translations"] == [{"text": "B A"}, {"text": ""}, {"text": "C"}]
    assert service.translate([]).json()["translations"] == []


def test_what_is_asked_for_is_there(service):
    answer = service.translate("a bc", scores=True, alignment=True, n_best=2).json()
    (line,) = answer["translations"]
    best = {"text": "BC A", "score": -0.3, "alignment": [[0, 1], [1, 0]]}
    best |= {"words": [[0, 2], [3, 4]], "parts": [[0, 4]]}
    assert line["outputs"][0] == best
    assert line["outputs"][1]["text"] == "BC A 1" and line["outputs"][1]["score"] == -0.55
    places = {"source_words": [[0, 1], [2, 4]], "source_parts": [[0, 4]]}
    assert line == {**best, **places, "outputs": line["outputs"]}
    (line,) = service.translate("a bc", n_best=1).json()["translations"]
    assert line == {"text": "BC A", "outputs": [{"text": "BC A"}]}


def test_what_is_wrong_with_a_line_is_in_the_answer(service):
    assert service.translate(["ODD"]).json()["warnings"] == ["line 1: odd"]
    assert len(service.translate(["ODD"] * 30).json()["warnings"]) == 10
    assert "warnings" not in service.translate(["a"]).json()


def test_what_was_lost_stands_beside_its_translation(service):
    answer = service.translate(["a {b}", "a"]).json()
    lost = [
        {"kind": "span", "what": "{b} is missing"},
        {"kind": "span", "what": "{B} is not in the source"},
    ]
    text = {"text": "{B} A", "protected_by": "cutting", "warnings": lost}
    assert answer["translations"] == [text, {"text": "A"}] and "warnings" not in answer
    # Each further output has its own.
    (line,) = service.translate(["b"], n_best=2).json()["translations"]
    assert "warnings" not in line and "warnings" not in line["outputs"][0]
    assert line["outputs"][1]["warnings"] == [{"kind": "number", "what": "1 is not in the source"}]


def test_the_translations_of_terms_are_given(service):
    terms = [["dog", "Hund", "Hunde"], ["cat", "CAT", "forbidden"]]
    answer = service.translate("a dog\na cat", terms=terms)
    assert answer.json()["translations"] == [
        {"text": "Hund A"},
        {"text": "CAT A", "warnings": [{"kind": "term", "what": "cat: CAT is forbidden"}]},
    ]
    # As many as a request may have, and as long.
    most = [["dog", *["x" * 200] * 18, "forbidden"]] * 100
    assert service.translate("a dog", terms=most).status_code == 200
    assert service.translate("a dog", terms=[["dog", "Hund"]] * 2_000).status_code == 200
    assert service.translate("a dog", terms=[]).json()["translations"] == [{"text": "DOG A"}]


def test_a_model_that_cannot_follow_terms_says_so():
    model = StandIn()
    model.card.terms = False
    with running(model) as service:
        assert [card["terms"] for card in service.client.get("/models").json()["models"]] == [False]
        answer = service.translate("a dog", terms=[["dog", "Hund"]])
        assert answer.status_code == 422 and answer.json()["detail"].startswith("terms: ")
        assert service.translate("a dog").status_code == 200


def test_the_largest_request_is_read(service):
    lines = ['a,[{"\\' * 50] * 1_000
    assert len(service.translate(lines).json()["translations"]) == 1_000
    assert service.translate("\n".join(lines) + "\n").status_code == 200


# ---- What is wrong ----


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"", 422, "expected a JSON object"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 1_000, 400, "not JSON"),
        (b"[]", 422, "expected a JSON object"),
        (b"null", 422, "expected a JSON object"),
        (b"{}", 422, "text: missing"),
        (b'\xef\xbb\xbf{"text": 1}', 422, "text: expected a string or a list of strings"),
        (b'{"text": null}', 422, "text: expected a string or a list of strings"),
        (b'{"text": NaN}', 422, "text: expected a string"),
        (b'{"text": "\\ud800"}', 422, "text: expected a string"),
        (b'{"text": ["a", 1]}', 422, "text[1]: expected a string"),
        (b'{"text": [' + b",".join([b"1"] * 1_000) + b"]}", 422, "text[0]: expected a string"),
        (b'{"text": ["a", "b\\nc"]}', 422, "text[1]: expected a string; it is one line"),
        (b'{"text": ["' + b'","' * 1_000 + b'"]}', 422, "a request may have 1,000 lines"),
        (b'{"text": "' + b"\\n" * 1_001 + b'"}', 422, "a request may have 1,000 lines"),
        (b'{"text": "a", "n_best": "2"}', 422, "n_best: '2': expected a whole number"),
        (b'{"text": "a", "n_best": true}', 422, "n_best: True: expected a whole number"),
        (b'{"text": "a", "n_best": 0}', 422, "n_best: 0: expected at least 1"),
        (b'{"text": "a", "n_best": 1e400}', 422, "n_best:"),
        (b'{"text": "a", "beam": 3}', 422, "beam: unknown key; did you mean beam_size"),
        (b'{"text": "a", "x\\u001b[2J": 3}', 422, "x\\x1b[2J: unknown key"),
        (b"{" + b"".join(b'"k%d":1,' % n for n in range(999)) + b'"text": 1}', 422, "k0: unknown"),
        (b'{"text": "a", "model": "other"}', 422, "There are: demo"),
        (b'{"text": "WRONG"}', 422, "n_best: 99"),
        (b'{"text": "a", "terms": "b"}', 422, "terms: expected a list of at most 2,000 terms"),
        (b'{"text": "a", "terms": [["b"]]}', 422, "terms[0]: expected a term and its translation"),
        (b'{"text": "a", "terms": [["b", "c"], ["", "d"]]}', 422, "terms[1]: expected a term"),
        (b'{"text": "a", "terms": [["b", "c"], "d"]}', 422, "terms[1]: expected a list"),
        (b'{"text": "a", "terms": [["b", 1]]}', 422, "terms[0]: expected a list of at most 20"),
        (b'{"text": "a", "terms": [["b"' + b',"c"' * 20 + b"]]}", 422, "terms[0]: expected"),
        (b'{"text": "a", "terms": [["b", "' + b"c" * 201 + b'"]]}', 422, "at most 200 characters"),
        (b'{"text": "a", "terms": [' + b"[]," * 2_000 + b"[]]}", 422, "at most 2,000 terms"),
    ],
)
def test_what_is_wrong_is_named(service, body, status, message):
    answer = service.post(body)
    assert answer.status_code == status and len(answer.content) < 1000
    assert list(answer.json()) == ["detail"] and message in answer.json()["detail"]


def test_an_error_of_the_program_is_answered_and_named_without_text(fresh, monkeypatch, capsys):
    answer = fresh.translate("BUG")
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert SECRET not in answer.text
    report, line = fresh.log(2)
    assert re.match(r"internal error: ZeroDivisionError in stand_in.py, line \d+", report)
    assert "POST /translate 503" in line
    assert SECRET not in capsys.readouterr().err + report
    monkeypatch.setenv("TRANSFORMER_MT_DEBUG", "1")
    fresh.translate("BUG")
    assert SECRET in capsys.readouterr().err


def test_addresses_and_methods_that_do_not_exist(service):
    answer = service.client.get("/translate")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    for path in ("/nothing", "/page/../app.py", "/..%2fapp.py", "/attention/x", "/docs/x"):
        answer = service.client.get(path)
        assert answer.status_code == 404 and answer.json()["detail"], path
    assert service.client.delete("/").status_code == 405
    assert service.client.options("/translate").status_code == 405


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
def test_odd_requests_are_answered_and_logged_in_short(service, method, path, headers):
    count = len(service.said)
    answer = service.client.request(method, path, headers=headers)
    assert answer.status_code in (200, 400, 404, 405)
    line = service.log(count + 1)[-1]
    assert len(line) < 400 and line.isprintable()
    assert service.client.get("/metrics").status_code == 200


# ---- The other addresses ----


def test_the_page_and_its_files(service):
    page = service.client.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert page.headers["cache-control"] == "no-cache"
    again = service.client.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304 and not again.content
    head = service.client.head("/")
    assert head.headers["content-length"] == page.headers["content-length"] and not head.content
    for path in app.PAGE.iterdir():
        assert service.client.get(f"/{path.name}").content == path.read_bytes()
    font = service.client.get("/inter.woff2")
    assert font.headers["content-type"] == "font/woff2" and len(font.content) < 120_000


def test_health_says_when_a_model_is_not_ready(service, monkeypatch):
    assert service.client.get("/health").json() == {"status": "ok"}
    monkeypatch.setattr(service.model.workers, "is_ready", False)
    answer = service.client.get("/health")
    assert answer.status_code == 503 and answer.json() == {"status": "loading"}


def test_a_model_is_chosen_by_name():
    with running(StandIn("one"), StandIn("two")) as service:
        assert service.translate("a", model="two").json()["model"] == "two"
        answer = service.translate("a")
        assert answer.status_code == 422 and "one, two" in answer.text
        cards = service.client.get("/models").json()["models"]
        assert [card["name"] for card in cards] == ["one", "two"]
        assert cards[0]["test"] == {"metric": "BLEU", "score": 39.1, "interval": 1.6}


def test_attention_pages_have_a_secret_address_and_a_policy_of_their_own(service, monkeypatch):
    def ask() -> str:
        answer = service.client.post("/attention", json={"source": "a b", "target": "c"})
        return answer.json()["url"]

    first = ask()
    assert re.fullmatch(r"/attention/[\w-]{22}", first)
    page = service.client.get(first)
    assert "map of a b and c" in page.text
    policy = page.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy and "allow-same-origin" not in policy
    # The address is a secret, so that it is not in the log.
    wait_for(lambda: any("GET /attention/{name} 200" in line for line in service.said))
    assert not any(first in line for line in service.said)
    # As many are kept as have room.
    monkeypatch.setattr(kept, "KEPT_BYTES", 3 * len(page.content))
    later = [ask() for _ in range(3)]
    assert service.client.get(first).status_code == 404
    assert all(service.client.get(url).status_code == 200 for url in later)
    monkeypatch.setattr(kept, "KEPT_SECONDS", 0)
    assert service.client.get(ask()).status_code == 404


def test_the_description_is_complete_and_its_examples_are_right(service):
    description = service.client.get("/openapi.json").json()
    paths, schemas = description["paths"], description["components"]["schemas"]
    for path in ("/translate", "/parts", "/attention"):
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for one in schema.get("oneOf", [schema]):
            for example in schemas[one["$ref"].rpartition("/")[2]]["examples"]:
                assert service.client.post(path, json=example).status_code == 200
        assert {"200", "default"} == set(paths[path]["post"]["responses"])
    for path, kinds in KINDS.items():
        if path != "/detect":  # whose body is left alone
            assert set(paths[path]["post"]["requestBody"]["content"]) == set(kinds)
    query = {"q": "a", "source": "auto", "target": "de", "alternatives": 1}
    answer = service.client.post("/translate", json=query).json()
    assert set(answer) == set(schemas["LibreTranslateAnswer"]["properties"])
    language = service.client.get("/languages").json()[0]
    assert set(language) == set(schemas["LanguageAnswer"]["properties"])
    answer = service.translate("ODD\na {b}", n_best=1, scores=True, alignment=True).json()
    assert set(answer) == set(schemas["TranslateAnswer"]["properties"])
    line = answer["translations"][1]
    assert set(line) == set(schemas["TranslationAnswer"]["properties"])
    card = service.client.get("/models").json()["models"][0]
    assert set(card) == set(schemas["Card"]["properties"])
    references = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(description)))
    assert references <= set(schemas)
    assert "securitySchemes" not in description["components"]


def test_metrics_count_what_happens(fresh):
    fresh.translate("a\nb")
    fresh.translate("OVERLOADED")
    for path in ("/a", "/b", "/c"):
        fresh.client.get(path)
    fresh.model.workers.computed(5)
    fresh.model.workers.crashes, fresh.model.queue.waiting = 3, 4
    answer = fresh.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    values = {
        (sample.name.removeprefix("transformer_mt_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    expected = {
        ("requests_total", "/translate", "200"): 1,
        ("requests_total", "/translate", "429"): 1,
        # Paths that do not exist have one name, so that nobody can make ever more counters.
        ("requests_total", "404", "other"): 3,
        ("request_seconds_count", "/translate"): 2,
        ("lines_total", "demo"): 2,
        ("batch_sentences_sum", "demo"): 5,
        ("worker_crashes_total", "demo"): 3,
        ("waiting_sentences", "demo"): 4,
        ("model_ready", "demo"): 1,
    }
    assert expected.items() <= values.items()


# ---- The log, and many clients ----


def test_the_log_has_one_line_per_request_and_no_text(fresh):
    fresh.translate("geheim\ngeheim", n_best=1)
    fresh.client.get("/nothing%0A%1b[2J/ü?q=geheim")
    first, second = fresh.log(2)
    begin = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d 127\.0\.0\.1 "
    assert re.fullmatch(begin + r"POST /translate 200 \d+ ms 2 lines", first)
    assert re.search(r" GET /nothing%0A%1B\[2J/%C3%BC 404 \d+ ms$", second, re.IGNORECASE)


def test_the_work_of_a_client_that_is_gone_is_dropped(fresh):
    with fresh.connect() as connection:
        connection.sendall(WAITING)
        assert fresh.model.began.acquire(timeout=30)
    wait_for(lambda: fresh.model.cancelled == 1)
    assert " POST /translate 499 " in fresh.log(1)[0]
    assert fresh.translate("a").status_code == 200


def test_many_clients_at_once_are_answered_and_more_are_told_to_wait(fresh, monkeypatch):
    monkeypatch.setattr(app, "MOST", 70)
    sockets = [fresh.connect() for _ in range(70)]
    for connection in sockets:
        connection.sendall(WAITING)
    for _ in sockets:
        assert fresh.model.began.acquire(timeout=30)
    answer = fresh.translate("a")
    assert answer.status_code == 429 and "retry-after" in answer.headers
    assert fresh.client.get("/health").status_code == 200
    fresh.model.held["WAIT"].set()
    for connection in sockets:
        with connection:
            received = b""
            while b'"B A"' not in received:
                received += connection.recv(1 << 16)
            assert received.startswith(b"HTTP/1.1 200")


# ---- How it ends ----


def test_requests_that_have_begun_are_finished_and_new_ones_are_not_taken(fresh):
    with fresh.connect() as waiting, fresh.connect() as sending, fresh.connect() as idle:
        waiting.sendall(WAITING)
        sending.sendall(WAITING[:-5])
        wait_for(lambda: len(fresh.server.server_state.tasks) == 2)
        fresh.server.should_exit = True
        assert idle.recv(1) == b""
        with pytest.raises(OSError):
            fresh.connect().close()
        sending.sendall(WAITING[-5:])
        fresh.model.held["WAIT"].set()
        for connection in (waiting, sending):
            received = rest_of(connection)
            assert received.startswith(b"HTTP/1.1 200") and b'"B A"' in received


def test_requests_that_take_too_long_are_answered_at_the_end():
    model = StandIn()
    model.held["WAIT"] = Event()
    with running(model, limits=Limits(timeout=1)) as service:
        with service.connect() as connection:
            connection.sendall(WAITING)
            assert model.began.acquire(timeout=30)
            service.server.should_exit = True
            assert rest_of(connection).startswith(b"HTTP/1.1 503")
        service.thread.join(30)
        assert not service.thread.is_alive()
