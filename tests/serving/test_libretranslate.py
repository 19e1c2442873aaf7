"""Clients of LibreTranslate use the service, with models that reverse words."""

import json
import re
from threading import Event
from urllib.error import HTTPError

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libretranslatepy import LibreTranslateAPI

from tests.serving.stand_in import StandIn, running
from transformer_mt.serving import app, kept, libretranslate
from transformer_mt.serving.batching import Limits
from transformer_mt.serving.documents import translate_document
from transformer_mt.serving.guard import Access
from transformer_mt.serving.tokens import Tokens
from transformer_mt.utils.errors import UsageError

PAIRS = [("en", "de"), ("zh_CN", "en"), ("zh-Hant", "en"), ("de", "pt_BR"), ("fr", "pt")]
TOKEN = "s3cret-Token"
CODES = ("en", "de")


@pytest.fixture(scope="module")
def service():
    models = [StandIn(f"{source}-{target}", source, target) for source, target in PAIRS]
    models[0].held["WAIT"] = Event()
    with running(*models, limits=Limits(timeout=2, max_lines=100)) as service:
        yield service


@pytest.fixture(scope="module")
def closed_service():
    with running(access=Access(tokens=Tokens({"": TOKEN}))) as service:
        yield service


@pytest.fixture
def fresh():
    """A service whose log has nothing yet."""
    with running() as service:
        yield service


def ask(service, q, source="en", target="de", **values) -> httpx.Response:
    values = {"q": q, "source": source, "target": target, **values}
    return service.client.post("/translate", json=values)


def send(service, content=b"a b\r\n\nc\n", name="a.txt", source="en", target="de", **values):
    files, data = {"file": (name, content)}, {"source": source, "target": target, **values}
    return service.client.post("/translate_file", data=data, files=files)


def error_of(answer: httpx.Response) -> str:
    assert list(answer.json()) == ["error"]
    return answer.json()["error"]


# ---- Clients ----


def test_libretranslatepy(closed_service, service):
    client = LibreTranslateAPI(closed_service.url, api_key=TOKEN)
    text = "ä & b=c\n日本 +%41\n"
    assert client.translate(text, "en", "de", timeout=30) == "B=C & Ä\n+%41 日本\n"
    assert client.languages() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    for client, status in (
        (LibreTranslateAPI(closed_service.url, api_key="wrong"), 401),
        (LibreTranslateAPI(closed_service.url), 401),
        (LibreTranslateAPI(service.url), 400),
    ):
        with pytest.raises(HTTPError) as error:
            client.translate("a", "en", "fr")
        assert error.value.code == status and json.load(error.value)["error"]
    with pytest.raises(HTTPError) as error:
        LibreTranslateAPI(service.url).detect("a")
    assert error.value.code == 403 and "not detect" in json.load(error.value)["error"]


def test_weblate(closed_service, service):
    """The requests of Weblate 2026.10 (machinery/libretranslate.py), and how it reads answers."""
    headers = {
        "Referer": "https://weblate.example/",
        "Accept": "application/json; charset=utf-8",
        "User-Agent": "Weblate/2026.10.1",
    }
    for one, key in ((closed_service, TOKEN), (service, "")):
        # It asks for the languages without the key, and needs the source and the target in them.
        found = one.client.get("/languages", headers=headers)
        assert found.status_code == 200
        assert {"en", "de"} <= {language["code"] for language in found.json()}
        # It tests a new service with this text, and then sends up to 20 texts.
        for texts in (["test"], ["a [X1X] b", "c\nd\n", "a"]):
            query = {"api_key": key, "q": texts, "source": "en", "target": "de"}
            answer = one.client.post("/translate", json=query, headers=headers).json()
            translated = answer["translatedText"]
            assert len(translated) == len(texts)
        assert translated == ["B [X1X] A", "C\nD\n", "A"]
        query = {"api_key": key, "q": ["test"], "source": "en", "target": "fr"}
        refused = one.client.post("/translate", json=query, headers=headers)
        # Weblate shows this text. After 401, 403, 429 and 503 it sends nothing for half an hour.
        assert refused.status_code == 400 and "en-de" in error_of(refused)


# ---- Texts ----


def test_texts_are_translated_with_their_line_ends(service):
    assert ask(service, "a b\r\n\nc d").json() == {"translatedText": "B A\r\n\nD C"}
    assert ask(service, ["a b\n", "", "c\rd e"]).json() == {
        "translatedText": ["B A\n", "", "C\rE D"]
    }
    assert ask(service, []).json() == {"translatedText": []}
    assert ask(service, "").json() == {"translatedText": ""}


def test_a_form_is_answered_as_json_is(service):
    form = {"q": "a b", "source": "en", "target": "de", "alternatives": "1"}
    expected = {"translatedText": "B A", "alternatives": ["B A 1"]}
    assert ask(service, "a b", alternatives=1).json() == expected
    assert service.client.post("/translate", data=form).json() == expected
    # httpx sends multipart/form-data if there are files.
    fields = {name: (None, value) for name, value in form.items()}
    assert service.client.post("/translate", files=fields).json() == expected
    texts = {**form, "q": ["a b", "c d"], "alternatives": ""}
    answer = service.client.post("/translate", data=texts)
    assert answer.json() == {"translatedText": ["B A", "D C"]}


def test_alternatives_are_further_translations(service):
    answer = ask(service, ["a b", "c d\n\ne"], alternatives=2).json()
    assert answer["alternatives"] == [["B A 1", "B A 2"], ["D C 1\n\nE 1", "D C 2\n\nE 2"]]
    assert ask(service, "", alternatives=2).json() == {"translatedText": "", "alternatives": []}
    assert "alternatives" not in ask(service, "a", alternatives=0).json()


def test_values_that_clients_leave_empty_and_keys_of_others_are_left_alone(service):
    answer = ask(service, "a b", format=None, alternatives=None, api_key=None, secret="x")
    assert answer.json() == {"translatedText": "B A"}
    assert ask(service, "a b", format="", api_key="anything").status_code == 200


@given(st.lists(st.text(st.sampled_from("ab \n\r\u2028"), max_size=12), max_size=8))
def test_texts_and_lines_are_put_together_again(texts):
    lines, ends = libretranslate.lines_of_texts(texts)
    model = StandIn()
    versions = libretranslate.versions_of(ends, model.translate(lines, None))
    alone = [translate_document(x.encode(), "a.txt", CODES, translated, "") for x in texts]
    assert [own[0].encode() for own in versions] == alone


def translated(lines: list[str]) -> list[str]:
    return [found.text for found in StandIn().translate(lines, None)]


# ---- Languages ----


def test_the_languages_are_those_of_the_models(service):
    found = {one["code"]: one for one in service.client.get("/languages").json()}
    assert {code: one["targets"] for code, one in found.items()} == {
        "en": ["de"],
        "de": ["pt-BR", "pt"],
        "zh-CN": ["en"],
        "zh": ["en"],
        "zh-Hant": ["en"],
        "pt-BR": [],
        "pt": [],
        "fr": ["pt"],
    }
    names = {code: one["name"] for code, one in found.items()}
    assert names["zh"] == "Chinese" and names["pt-BR"] == "Portuguese (Brazil)"
    for code, own in found.items():
        for target in own["targets"]:
            assert ask(service, "a b", code, target).json() == {"translatedText": "B A"}


def test_names_of_languages():
    assert libretranslate.name_of("el") == "Modern Greek"
    assert libretranslate.name_of("zh-Hant") == "Chinese (Traditional variant)"
    assert libretranslate.name_of("sr-Latn-RS") == "Serbian (Latin, Serbia)"
    for code in ("source", "xx", "a-b", ""):
        assert libretranslate.name_of(code) == code


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [
        ("en", "de", "en-de"),
        ("EN_us", "de-AT", "en-de"),
        ("eng", "ger", "en-de"),
        ("zh", "en", "zh_CN-en"),
        ("zh_CN", "en", "zh_CN-en"),
        ("zh-Hans", "en", "zh_CN-en"),
        ("cn", "en", "zh_CN-en"),
        ("zh_Hant", "en", "zh-Hant-en"),
        ("zh-TW", "en_GB", "zh-Hant-en"),
        ("auto", "de", "en-de"),
        ("auto", "en", "zh_CN-en"),  # All models into English translate from Chinese.
        ("fr", "pt-BR", "fr-pt"),
    ],
)
def test_the_model_is_that_of_the_languages(service, source, target, name):
    model = libretranslate.choose(service.models.values(), source, target)
    assert model.name == name
    answer = ask(service, ["a b"], source, target).json()
    assert answer["translatedText"] == ["B A"]
    assert ("detectedLanguage" in answer) == (source == "auto")


def test_auto_names_the_language_that_it_stands_for(service):
    detected = {"language": "en", "confidence": 0}
    assert ask(service, "a", "auto").json()["detectedLanguage"] == detected
    assert ask(service, ["a", "b"], "auto").json()["detectedLanguage"] == [detected, detected]


@pytest.mark.parametrize("code", ["source", "Quelle", "x", "i-default-", "日本", "zh"])
def test_a_model_whose_code_is_none_of_a_language_is_found(code):
    models = [StandIn("one", "en", "de"), StandIn("two", code, "de")]
    assert libretranslate.choose(models, code, "de").name == "two"
    assert code in [one.code for one in libretranslate.languages(m.card for m in models)]


@given(st.text(max_size=20), st.text("zhHantCN-_", max_size=20))
def test_any_code_is_compared(first, second):
    for source in (first, second):
        try:
            libretranslate.choose([StandIn()], source, "de")
        except UsageError as error:
            assert "en-de" in str(error)


# ---- What is wrong ----


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"q": 1}, "q: expected a string or a list of strings"),
        ({"q": None}, "q: expected a string or a list of strings"),
        ({"q": ["a", 1]}, "q[1]: expected a string"),
        ({"q": ["a", ["b"]]}, "q[1]: expected a string"),
        ({"source": ""}, "source: missing"),
        ({"target": None}, "target: missing"),
        ({"target": 1}, "target: 1: expected"),
        ({"source": "a" * 101}, "source: "),
        (
            {"source": "fr"},
            "no model translates from fr into de. There are models for en-de, zh_CN",
        ),
        ({"target": "en"}, "no model translates from en into en"),
        ({"target": "x\x1b"}, "no model translates from en into"),
        ({"source": "auto", "target": "it"}, "no model translates into it"),
        ({"source": "auto", "target": "pt"}, "Give the code of one of these: de, fr"),
        ({"format": "pdf"}, "format: 'pdf': expected"),
        ({"alternatives": -1}, "alternatives: -1: expected at least 0"),
        ({"alternatives": "x"}, "alternatives: 'x': expected"),
        ({"q": "WRONG"}, "n_best: 99"),
        ({"q": "a\n" * 101}, "a request may have 100 lines"),
        ({"q": ["a\n" * 50, "a\n" * 51]}, "a request may have 100 lines"),
    ],
)
def test_what_is_wrong_is_named(service, values, message):
    answer = ask(service, **{"q": "a", **values})
    assert answer.status_code == 400 and message in error_of(answer)


def test_what_is_wrong_with_a_form_is_named(service):
    def refused(**values):
        answer = service.client.post("/translate", **values)
        assert answer.status_code == 400
        return error_of(answer)

    form = {"source": "en", "target": "de"}
    assert "q: missing" in refused(data=form)
    assert "source: missing" in refused(data={"q": "a", "target": "de"})
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert "not a form" in refused(content=b"q=%ff&source=en&target=de", headers=kind)
    assert "/translate_file" in refused(data=form, files={"q": ("a.txt", b"a")})
    kind = {"Content-Type": "multipart/form-data"}
    assert "boundary" in refused(content=b"--x--", headers=kind)


def test_limits_and_troubles_have_the_form_of_the_request(service, monkeypatch):
    for word, status in (("OVERLOADED", 429), ("LATE", 503), ("LOST", 503), ("BUG", 503)):
        answer = ask(service, word)
        assert answer.status_code == status and "retry-after" in answer.headers
        assert error_of(answer)
    answer = ask(service, "WAIT")  # longer than the time limit
    assert answer.status_code == 503 and "too long" in error_of(answer)
    monkeypatch.setattr(app, "MOST", 0)
    for answer in (ask(service, "a"), send(service)):
        assert answer.status_code == 429 and error_of(answer)
    assert list(service.translate("a", model="en-de").json()) == ["detail"]


# ---- Tokens ----


def test_the_token_may_be_in_a_header_or_in_the_request(closed_service):
    client, right = closed_service.client, {"Authorization": f"Bearer {TOKEN}"}
    values = {"q": "a", "source": "en", "target": "de"}
    for kind in ("json", "data"):
        for key, headers, status in (
            (TOKEN, {}, 200),
            ("wrong", right, 200),
            (None, right, 200),
            (None, {}, 401),
            ("", {}, 401),
            (TOKEN + "x", {}, 401),
            (TOKEN, {"Authorization": "Bearer wrong"}, 401),
            # A proxy may ask for a password, and pass it on.
            (TOKEN, {"Authorization": "Basic eDp5"}, 200),
        ):
            one = values if key is None else {**values, "api_key": key}
            answer = client.post("/translate", **{kind: one}, headers=headers)
            assert answer.status_code == status
            if status == 401:
                # A wrong header is refused before the service has seen what the form of JSON is.
                assert headers or "api_key" in error_of(answer)
    for key in (1, ["a"], {}, "\ud800", True):
        content = json.dumps({**values, "api_key": key})
        assert closed_service.post(content).status_code == 401
    for body in (b"{", b"[]", b"\xff", b"[" * 100_000, b""):
        assert closed_service.post(body).status_code == 401
    assert send(closed_service, api_key=TOKEN).status_code == 200
    for values in ({}, {"api_key": "wrong"}):
        answer = send(closed_service, **values)
        assert answer.status_code == 401 and error_of(answer)
    # Only LibreTranslate's form has it.
    for path in ("/parts", "/attention"):
        assert client.post(path, json={"api_key": TOKEN}).status_code == 401


# ---- Files ----


def test_a_file_is_translated_and_kept_under_a_secret_name(closed_service):
    answer = send(closed_service, name="Über uns.TXT", api_key=TOKEN)
    assert list(answer.json()) == ["translatedFileUrl"]
    url = answer.json()["translatedFileUrl"]
    assert url.startswith(f"{closed_service.url}download_file/") and url.endswith(".txt")
    for one in (url, url.removesuffix(".txt")):
        found = closed_service.client.get(one)
        assert found.content == b"B A\r\n\nC\n"
    assert found.headers["content-type"] == "application/octet-stream"
    assert found.headers["content-disposition"].endswith("''%C3%9Cber%20uns_de.TXT")
    name = url.rpartition("/")[2].partition(".")[0]
    # A page is no file, and a file is no page.
    assert closed_service.client.get(f"/attention/{name}").status_code == 404
    gone = closed_service.client.get("/download_file/x.txt")
    assert gone.status_code == 404 and "this file is gone" in error_of(gone)


def test_as_many_files_are_kept_as_have_room(service, monkeypatch):
    def url():
        return send(service).json()["translatedFileUrl"]

    first = url()
    monkeypatch.setattr(kept, "KEPT_BYTES", 20)
    later = [url(), url()]
    assert service.client.get(first).status_code == 404
    assert all(service.client.get(one).status_code == 200 for one in later)
    monkeypatch.setattr(kept, "KEPT_SECONDS", 0)
    assert service.client.get(url()).status_code == 404


def test_the_address_of_a_file_is_that_of_the_proxy():
    access = Access(("mine.example",), ("https://mine.example",))
    with running(access=access) as service:
        service.client.headers["Host"] = "mine.example"
        url = send(service).json()["translatedFileUrl"]
        assert url.startswith("https://mine.example/download_file/")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.json", b'{"a" : "b c\\n d", "e": 1}', b'{"a" : "C B\\n D", "e": 1}'),
        ("A.PO", b'msgid "b c"\nmsgstr ""\n', b'#, fuzzy\nmsgid "b c"\nmsgstr "C B"\n'),
        ("a.html", b"<P>b c<p>d", b"<P>C B<p>D"),
        ("a.srt", b"1\n00:01.0 --> 00:02.0\nb c\n", b"1\n00:01.0 --> 00:02.0\nC B\n"),
    ],
)
def test_a_document_keeps_what_is_no_text(service, name, content, expected):
    url = send(service, content, name).json()["translatedFileUrl"]
    assert service.client.get(url).content == expected


def test_troubles_of_the_model_are_no_faults_of_a_document(service):
    for word, status in (("OVERLOADED", 429), ("LATE", 503), ("LOST", 503)):
        answer = send(service, json.dumps([word]).encode(), "a.json")
        assert answer.status_code == status and "retry-after" in answer.headers


def test_html_as_text(service):
    page = '<meta charset="latin1"><p title="b c">ä b</p>\n<script>c d</script> d'
    expected = '<meta charset="latin1"><p title="C B">B Ä</p>\n<script>c d</script> D'
    assert ask(service, page, format="html").json() == {"translatedText": expected}
    answer = ask(service, [page, "", "a &amp; b\ufeff"], format="html", alternatives=1).json()
    assert answer["translatedText"] == [expected, "", "B\ufeff &amp; A"]
    assert answer["alternatives"] == [[], [], []]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": ""}, "source: "),
        ({"target": "fr"}, "no model translates from en into fr"),
        ({"name": "a.exe"}, "a.exe: expected a file whose name ends in one of .txt"),
        ({"name": "txt"}, "txt: expected a file"),
        ({"content": b"\xff\xfe"}, "not text in UTF-8"),
        ({"content": b"a\n" * 101}, "a request may have 100 lines"),
        ({"name": "a.csv"}, "a.csv: expected a file whose name ends in one of .txt, .po, "),
        ({"name": "a/b\\c.po", "content": b'msgid "a'}, "c.po, line 1: not a line of a PO file"),
        ({"name": "a.docx"}, "a.docx"),
        ({"name": "a.xml", "content": b"<a/>"}, "not a strings.xml file of Android"),
        ({"name": "a.json", "content": b'{"a": "WRONG"}'}, "n_best: 99"),
        (
            {
                "name": "a.json",
                "content": json.dumps({str(n): str(n) for n in range(101)}).encode(),
            },
            "a request may have 100 lines",
        ),
        # Capital letters in a charset that has not all of them.
        (
            {
                "name": "a.po",
                "content": 'msgid ""\nmsgstr "Content-Type: text/plain; charset=latin1\\n"\n\n'
                'msgid "\xff"\nmsgstr ""\n'.encode("latin1"),
            },
            "a.po",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(service, values, message):
    answer = send(service, **values)
    assert answer.status_code == 400 and message in error_of(answer)


def test_a_file_must_be_in_a_form(service):
    answer = service.client.post("/translate_file", files={"x": ("a.txt", b"a")})
    assert answer.status_code == 400 and "file: missing" in error_of(answer)
    fields = {"file": (None, "a"), "source": (None, "en"), "target": (None, "de")}
    answer = service.client.post("/translate_file", files=fields)
    assert answer.status_code == 400 and "file: " in error_of(answer)
    for values in ({"json": {}}, {"data": {"file": "a"}}):
        answer = service.client.post("/translate_file", **values)
        assert answer.status_code == 415 and "multipart/form-data" in error_of(answer)


def test_the_log_counts_the_lines_of_a_file_and_names_no_secret(fresh):
    url = send(fresh, b"geheim\ngeheim", "geheim.txt").json()["translatedFileUrl"]
    fresh.client.get(url)
    first, second = fresh.log(2)
    assert re.search(r" POST /translate_file 200 \d+ ms 2 lines$", first)
    assert " GET /download_file/{name} 200 " in second
    assert "geheim" not in first and url.rpartition("/")[2][:5] not in second


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_document_without_translations_is_what_it_was(text):
    content = text.encode()
    assert translate_document(content, "a.txt", CODES, list, "demo") == content


def test_a_mark_at_the_beginning_of_a_file_is_no_text():
    found = translate_document(b"\xef\xbb\xbfa b\n", "a.txt", CODES, translated, "demo")
    assert found == b"\xef\xbb\xbfB A\n"
