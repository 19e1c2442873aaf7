"""The translation page in a real browser, with a model whose translations are known: the words in
reverse order and in capitals."""

import json
import re
import threading

import pytest

from tests.serving.browser import chromium
from tests.serving.stand_in import StandIn, running, wait_for
from transformer_mt.serving.guard import Access
from transformer_mt.serving.tokens import Tokens

pytestmark = pytest.mark.slow

LANGUAGES = [("en", "de"), ("de", "en"), ("en", "ar")]
READY = "document.querySelector('#about').checkVisibility()"
HOSTILE = [
    "<script>window.hostile=1</script>",
    "<img src=x onerror=window.hostile=2>",
    "&lt;b&gt; \" ' ` ${window.hostile=3} </textarea>",
    "\u202eevil\u202c \u2067שלום\u2069 (abc) 123",
    "x" * 400,
    "日本語のテキスト 😀 a\u0301\u200d",
]


def translated(sentence: str) -> str:
    return " ".join(reversed(sentence.upper().split()))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def models():
    return [StandIn(f"{source}_{target}", source, target) for source, target in LANGUAGES]


@pytest.fixture
def service(models):
    with running(*models) as service:
        yield service


@pytest.fixture
def opened(browser, service):
    """A function that opens the page. At the end, no page may have had an error, nor have asked
    another server for anything."""
    pages = []

    def open_page(fragment="", **options):
        page = browser.page(service.url + fragment, **options)
        pages.append(page)
        page.until(READY)
        return page

    yield open_page
    for page in pages:
        assert page.errors() == []
        assert page.run("window.hostile ?? null") is None
        addresses = {one["url"] for one in page.requests()}
        assert all(one.startswith((service.url, "blob:")) for one in addresses), addresses


def write(page, text):
    """Types a text in place of the one that is there."""
    page.run("document.querySelector('#source').select()")
    page.click("#source")
    page.run("document.querySelector('#source').select()")
    page.type(text)


def is_translated(page, *lines):
    """Waits until these are the lines of the translation."""
    found = "[...document.querySelectorAll('#translation p')].map((one) => one.textContent)"
    page.until(f"JSON.stringify({found}) === JSON.stringify({json.dumps(lines)})")


def choose(page, name, value):
    """Chooses a language or a model from one of the lists."""
    page.run(f"{name}.value = '{value}'; {name}.dispatchEvent(new Event('change'))")


def offered(page, name):
    """The values of a list, the chosen one first."""
    chosen = page.run(f"{name}.value")
    values = page.run(f"[...{name}.options].map((one) => one.value)")
    return [chosen, *sorted(value for value in values if value != chosen)]


def downloaded(page, folder, name):
    """Downloads the file that is ready, and returns its text."""
    page.download_to(folder)
    page.click("#files a:not([hidden])")
    wait_for((folder / name).exists)
    return (folder / name).read_bytes().decode()


def asked(page):
    """The texts that the page has sent, request by request."""
    posts = [one for one in page.requests() if one["url"].endswith("/translate")]
    return [json.loads(one["postData"])["text"] for one in posts]


# ---- Typing ----


def test_it_translates_while_one_types(opened):
    page = opened()
    page.click("#source")
    page.type("A dog runs. A cat sleeps!\n\n  Mr. Smith is here.\n")
    is_translated(page, "RUNS. DOG A SLEEPS! CAT A", "", "  HERE. IS SMITH MR.", "")
    assert asked(page) == [["A dog runs.", "A cat sleeps!", "Mr. Smith is here."]]
    page.type("Last line")
    is_translated(page, "RUNS. DOG A SLEEPS! CAT A", "", "  HERE. IS SMITH MR.", "LINE LAST")
    assert asked(page)[1:] == [["Last line"]]
    page.click("#clear")
    is_translated(page, "")
    assert page.text("#copy") == "Copy" and page.run("document.querySelector('#copy').disabled")


def test_an_old_answer_does_not_replace_a_new_one(opened, models):
    models[0].held["slow"] = held = threading.Event()
    page = opened()
    write(page, "this is slow")
    assert models[0].began.acquire(timeout=30)
    page.until("document.querySelector('#working').textContent")
    write(page, "this is fast")
    is_translated(page, "FAST IS THIS")
    held.set()
    write(page, "this is faster")
    is_translated(page, "FASTER IS THIS")
    # The browser has given up the request.
    failed = [one for one in page.events if one["method"] == "Network.loadingFailed"]
    assert [one["params"]["canceled"] for one in failed] == [True]


def test_a_text_that_is_too_long_is_refused_here_and_a_sentence_by_the_server(opened):
    page = opened()
    write(page, "TOOLONG is this. This is short.")
    page.until("!document.querySelector('#problem').hidden")
    assert page.text("#problem").startswith("A sentence was not translated: the text has")
    is_translated(page, "TOOLONG is this. SHORT. IS THIS")
    write(page, "word " * 5_000)
    page.until("document.querySelector('#problem').textContent.includes('25,000 characters')")
    write(page, "good")
    is_translated(page, "GOOD")
    assert page.text("#problem") is None


# ---- Alternatives and words ----


def test_another_translation_is_chosen(opened):
    page = opened()
    write(page, "A dog runs. It is here.")
    is_translated(page, "RUNS. DOG A HERE. IS IT")
    page.click("#translation [role=button]:nth-of-type(2)")
    page.until("document.querySelectorAll('#others .output').length === 4")
    assert page.texts("#others .output bdi") == ["HERE. IS IT", "HERE. IS IT 1", "HERE. IS IT 2",
                                                 "HERE. IS IT 3"]  # fmt: skip
    assert page.texts("#others .output .quiet") == ["-0.30", "-0.55", "-0.80", "-1.05"]
    assert page.texts("#others [aria-pressed=true] bdi") == ["HERE. IS IT"]
    page.click("#others .output:nth-of-type(5)")
    is_translated(page, "RUNS. DOG A HERE. IS IT 2")
    assert page.text("#others") is None
    # It stays when the rest is changed.
    page.run("document.querySelector('#source').setSelectionRange(0, 0)")
    page.run("document.querySelector('#source').focus()")
    page.type("No! ")
    is_translated(page, "NO! RUNS. DOG A HERE. IS IT 2")


def test_what_was_lost_is_marked_and_told(opened):
    page = opened(width=360)
    write(page, "Hello {name} there. A dog")
    marked = "#translation .warned"
    page.until(f"document.querySelectorAll('{marked}').length === 1")
    mark = page.run(f"getComputedStyle(document.querySelector('{marked}'), '::after').content")
    assert "⚠" in mark and "⚠" not in page.text("#translation")
    told = page.run(f"document.querySelector('{marked}').title").split("\n")
    assert told[0] == "Tag or placeholder: {name} is missing."
    page.click(marked)
    page.until("document.querySelectorAll('#others .warning').length > 0")
    assert page.texts("#others .warning") == told
    assert page.run("document.documentElement.scrollWidth") == 360
    page.run("document.querySelector('#language').click()")
    page.until(
        f"document.querySelector('{marked}').title.startsWith('标记或占位符：缺少 {{name}}。')"
    )


def test_everything_can_be_reached_by_the_keyboard(opened):
    page = opened()
    page.run("document.querySelector('#source').focus()")
    page.type("A dog runs. It is here.")
    is_translated(page, "RUNS. DOG A HERE. IS IT")
    focused = "document.activeElement.id || document.activeElement.textContent"
    order = []
    for _ in range(4):
        page.key("Tab")
        order.append(page.run(focused))
    assert order == ["choose", "share", "RUNS. DOG A", "copy"]
    page.key("Tab", modifiers=8)
    page.key("ArrowRight")
    assert page.texts(".lit") == ["RUNS."] and page.texts(".partner") == ["runs."]
    page.key("ArrowDown")
    assert page.run(focused) == "HERE. IS IT" and page.texts(".lit") == []
    page.key("Enter")
    page.until("document.activeElement.matches('.output')")
    page.key("Escape")
    assert page.text("#others") is None and page.run(focused) == "HERE. IS IT"
    page.key("Enter")
    page.until("document.activeElement.matches('.output')")
    page.key("Tab")
    page.key("Enter")
    is_translated(page, "RUNS. DOG A HERE. IS IT 1")
    assert page.run(focused) == "HERE. IS IT 1"
    page.run("document.querySelector('#clear').focus()")
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_words_that_belong_together_are_lit(opened):
    """The words are counted in code points by the server, and in UTF-16 by the browser."""
    page = opened()
    write(page, "Yes! 😀😀 dog\u0301 runs")
    is_translated(page, "YES! RUNS DOG\u0301 😀😀")
    page.point("#translation p [data-sentence='1'] [data-word='1']")
    page.until("document.querySelector('.lit')")
    assert page.texts(".lit") == ["DOG\u0301"] and page.texts("#mirror .partner") == ["dog\u0301"]
    # The mouse points at the text field, which lies over the copy of its text.
    page.point("#mirror [data-sentence='1'] [data-word='2']")
    page.until("document.querySelector('.lit').textContent === 'runs'")
    assert page.texts("#translation .partner") == ["RUNS"]
    assert (
        page.run(
            "document.elementFromPoint(...Object.values((({x, y}) => ({x: x + 2, y: y + 2}))"
            "(document.querySelector('.lit').getBoundingClientRect()))).id"
        )
        == "source"
    )
    page.point("h1")
    page.until("!document.querySelector('.lit')")
    # Without a mouse, the word at the cursor is meant.
    page.run("document.querySelector('#source').setSelectionRange(0, 0)")
    page.run("document.querySelector('#source').focus()")
    page.key("ArrowRight")
    page.until("document.querySelector('.lit')?.textContent === 'Yes!'")


# ---- Terms ----


def given(page):
    """The terms of the last request for a translation."""
    posts = [one for one in page.requests() if one["url"].endswith("/translate")]
    return json.loads(posts[-1]["postData"]).get("terms")


def write_terms(page, text):
    page.run("document.querySelector('#terms-text').select()")
    page.click("#terms-text")
    page.run("document.querySelector('#terms-text').select()")
    page.type(text)


def test_terms_are_given_kept_and_named_if_they_cannot_be_read(opened, models, service, tmp_path):
    models[2].card.terms = False
    page = opened(width=360)
    write(page, "A dog runs")
    is_translated(page, "RUNS DOG A")
    assert given(page) is None and page.text("#terms-text") is None
    # The keyboard opens the section, and reaches the field.
    page.run("document.querySelector('#terms summary').focus()")
    page.key("Enter")
    page.key("Tab")
    assert page.run("document.activeElement.id") == "terms-text"
    rows = ["# animals", "dog\tHund, m\tHunde\t", "cat = Katze, Katzen", "hat,Hut", "", "runs",
            "A = A，forbidden", "=x", "x" * 201 + "=y", "a=" + ",".join(["b"] * 20)]  # fmt: skip
    page.type("\n".join(rows))
    is_translated(page, "RUNS Hund, m A")
    terms = [["dog", "Hund, m", "Hunde"], ["cat", "Katze", "Katzen"], ["hat", "Hut"],
             ["A", "A", "forbidden"]]  # fmt: skip
    assert given(page) == terms
    assert re.findall(r"Lines? [\d, ]+", page.text("#terms-wrong")) == ["Lines 6, 8", "Lines 9, 10"]
    assert page.text("#terms-state") == "4 terms · 4 lines not read"
    described = "document.querySelector('#terms-text').getAttribute('aria-describedby').split(' ')"
    assert page.run(f"{described}.every((id) => document.getElementById(id))")
    assert page.run("document.querySelector('#terms-text').labels.length") == 1
    assert page.run("document.querySelector('#terms-text').ariaInvalid") == "true"
    assert page.run("document.documentElement.scrollWidth") == 360
    # What a translation has against them is marked.
    told = "document.querySelector('#translation .warned').title.split('\\n')"
    assert page.run(told)[-1] == "Term: A: A is forbidden."
    page.run("document.querySelector('#language').click()")
    page.until(f"{told}.at(-1) === '术语：A 不得译为 A。'")
    assert page.text("#terms-state") == "4 个术语 · 4 行无法读取"
    page.run("document.querySelector('#language').click()")
    # Other translations and files follow them too.
    page.tap("#translation [role=button]")
    page.until("document.querySelectorAll('#others .output').length === 4")
    assert page.texts("#others .output bdi")[0] == "RUNS Hund, m A" and given(page) == terms
    page.key("Escape")
    (tmp_path / "a.txt").write_text("the cat")
    page.drop(tmp_path / "a.txt")
    page.until("document.querySelectorAll('#files a:not([hidden])').length === 1")
    assert downloaded(page, tmp_path, "a.de.txt") == "Katze THE"
    # They stay, for their languages alone, and a model that cannot follow them does without.
    page.reload()
    page.until(READY)
    assert page.run("document.querySelector('#terms-text').value") == "\n".join(rows)
    choose(page, "from", "de")
    write(page, "A dog")
    is_translated(page, "DOG A")
    assert page.run("document.querySelector('#terms-text').value") == "" and given(page) is None
    choose(page, "from", "en")
    choose(page, "to", "ar")
    page.run("document.querySelector('#terms').open = true")
    write_terms(page, "dog = كلب")
    page.until("document.querySelector('#terms-wrong').textContent.includes('cannot follow')")
    assert page.text("#terms-state") == "1 term not used"
    write(page, "My dog")
    is_translated(page, "DOG MY")
    assert given(page) is None


def test_as_many_terms_as_the_server_takes(opened, models):
    page = opened("#text=dog")
    page.run("document.querySelector('#terms').open = true")
    longest = ["x" * 199 + "😀", *(f"b{i}" for i in range(18)), "forbidden"]
    write_terms(page, "\n".join([*["dog\tHund"] * 1_999, "\t".join(longest), "a=b", "c=d"]))
    is_translated(page, "Hund")
    assert given(page)[-1] == longest and len(given(page)) == 2_000
    assert page.text("#terms-wrong").startswith("From line 2,001 on")
    # What only the server finds wrong is shown at the field.
    write_terms(page, "\x1c = x")
    page.until(
        "document.querySelector('#terms-wrong').textContent.startsWith('terms[0]: expected')"
    )
    write_terms(page, "dog = Hunde")
    is_translated(page, "Hunde")
    assert page.text("#terms-wrong") is None or page.text("#terms-wrong") == ""
    assert page.text("#problem") is None


def test_the_translation_before_other_terms_is_shown_until_the_new_one_is_there(opened, models):
    page = opened("#text=A+dog.+Slow+cat.")
    is_translated(page, "DOG. A CAT. SLOW")
    models[0].held["Slow"] = held = threading.Event()
    page.run("document.querySelector('#terms').open = true")
    write_terms(page, "A = Ein")
    assert models[0].began.acquire(timeout=30)
    page.until("document.querySelectorAll('#translation .old').length === 2")
    is_translated(page, "DOG. A CAT. SLOW")
    write_terms(page, "Slow = Langsam")
    assert models[0].began.acquire(timeout=30)
    is_translated(page, "DOG. A CAT. SLOW")
    held.set()
    is_translated(page, "DOG. A CAT. Langsam")


def test_without_a_model_that_follows_terms_there_is_no_field_for_them(opened, models):
    for model in models:
        model.card.terms = False
    page = opened()
    assert page.text("#terms") is None


# ---- Models, languages, sizes ----


def test_languages_are_chosen_and_swapped(opened):
    page = opened()
    assert offered(page, "from") == ["en", "de"] and offered(page, "to") == ["de", "ar"]
    assert page.text("#choice") is None
    write(page, "A dog")
    is_translated(page, "DOG A")
    page.click("#swap")
    is_translated(page, "A DOG")
    assert page.run("source.value") == "DOG A" and page.text("#source-language") == "German"
    assert offered(page, "to") == ["en"] and page.run("to.disabled")
    assert page.run("document.querySelector('#from').ariaLabel") == "Translate from"
    # The language that is translated into is chosen as the source: they are exchanged.
    choose(page, "from", "en")
    assert page.text("#target-language") == "German"
    page.key("s", modifiers=2 + 8)
    assert page.text("#source-language") == "German"
    page.key("s", modifiers=4 + 8)
    assert page.text("#source-language") == "English"
    choose(page, "to", "ar")
    assert page.text("#target-language") == "Arabic"
    page.until("getComputedStyle(document.querySelector('#translation p')).direction === 'rtl'")
    assert page.run("document.title") == "English → Arabic · Translation"
    # There is no model for the way back.
    text, reason = page.run("source.value"), "No model for Arabic → English is loaded."
    assert page.run("swap.ariaDisabled") == "true" and page.run("swap.title") == reason
    page.click("#swap")
    assert page.text("#swap-note") == reason and page.text("#target-language") == "Arabic"
    assert page.run("source.value") == text
    choose(page, "to", "de")
    assert page.text("#swap-note") is None and page.run("swap.ariaDisabled") == "false"


def test_a_swap_loses_no_text(opened, models):
    models[0].held["slow"] = held = threading.Event()
    page = opened()
    write(page, "A dog. It is slow.")
    assert models[0].began.acquire(timeout=30)
    page.click("#swap")
    assert page.run("source.value") == "A dog. It is slow."
    held.set()
    is_translated(page, "DOG. A SLOW. IS IT")


def test_one_of_several_models_for_the_same_languages(browser):
    with running(StandIn("small"), StandIn("large"), StandIn("other", "fr", "de")) as service:
        page = browser.page(service.url + "#model=large&text=A+dog")
        is_translated(page, "DOG A")
        assert offered(page, "model") == ["large", "small"]
        choose(page, "model", "small")
        assert "small" in page.text("#about")
        choose(page, "from", "fr")
        assert page.text("#choice") is None and page.text("#target-language") == "German"
        assert page.errors() == []


def test_the_keyboard_translates_at_once_and_shows_its_help(opened):
    page = opened()
    page.run("window.setTimeout = () => 0")  # so that no pause ends
    page.click("#source")
    page.type("A dog")
    page.run("new Promise((resolve) => requestAnimationFrame(resolve))")
    assert page.text("#translation") != "DOG A"
    page.key("Enter", modifiers=2)
    is_translated(page, "DOG A")
    assert page.run("source.value") == "A dog"
    page.run("document.querySelector('#keys-open').focus()")
    page.key("Enter")
    assert "Swap the languages" in page.text("#keys")
    page.key("s", modifiers=2 + 8)
    assert page.text("#source-language") == "English"
    page.key("Escape")
    assert page.text("#keys") is None and page.run("document.activeElement.id") == "keys-open"


# ---- The history ----


def kept(page):
    """The texts of the history, with their translations."""
    found = page.run("JSON.parse(localStorage.getItem('transformer_mt.history') ?? '[]')")
    return [(one["text"], one["translation"]) for one in found]


def test_the_history_is_kept_here_and_opened_again(opened):
    page = opened()
    for text in ["A dog", "It is here"]:
        write(page, text)
        is_translated(page, translated(text))
    page.type(" now")
    is_translated(page, "NOW HERE IS IT")
    page.click("#swap")
    is_translated(page, "IT IS HERE NOW")
    page.reload()
    page.until(READY)
    sent = len(page.requests())
    page.click("#history-open")
    assert page.texts("#history li bdi") == [
        *("NOW HERE IS IT", "IT IS HERE NOW"),
        *("It is here now", "NOW HERE IS IT"),
        *("A dog", "DOG A"),
    ]
    assert len(page.requests()) == sent
    assert [text.split(" · ")[0] for text in page.texts("#history .open .quiet")] == [
        *("German → English", "English → German", "English → German")
    ]
    assert page.run("document.querySelector('#history bdi').lang") == "de"
    # What is opened again is the newest one, and is there only once.
    page.click("#history li:nth-child(3) .open")
    is_translated(page, "DOG A")
    assert page.text("#history") is None and page.text("#target-language") == "German"
    assert [text for text, _ in kept(page)] == ["A dog", "NOW HERE IS IT", "It is here now"]


def test_the_history_is_deleted_and_turned_off(opened):
    page = opened(width=360)
    for text in ["A dog", "It is here", *HOSTILE[:2]]:
        write(page, text)
        is_translated(page, translated(text))
    page.tap("#history-open")
    page.until("document.querySelector('#history').open")
    assert page.texts("#history li bdi:nth-of-type(1)") == [*HOSTILE[1::-1], "It is here", "A dog"]
    assert page.run("document.documentElement.scrollWidth") == 360
    page.run("document.querySelector('#history li:nth-child(3) .delete').focus()")
    assert page.run("document.activeElement.ariaLabel") == "Delete: It is here"
    page.key("Enter")
    assert page.run("document.activeElement.ariaLabel") == "Delete: A dog"
    assert [text for text, _ in kept(page)] == [*HOSTILE[1::-1], "A dog"]
    # Off, nothing new is kept; what was kept stays until it is cleared, which is asked first.
    page.tap("#history label")
    page.key("Escape")
    assert page.text("#history") is None
    write(page, "My cat")
    is_translated(page, "CAT MY")
    page.reload()
    page.until(READY)
    page.tap("#history-open")
    page.until("document.querySelector('#history').open")
    assert not page.run("document.querySelector('#history-on').checked") and len(kept(page)) == 3
    page.tap("#history-clear")
    page.until("document.querySelector('#history-clear').textContent === 'Delete all 3?'")
    assert len(kept(page)) == 3
    page.tap("#history-clear")
    page.until("document.querySelector('#history-empty').checkVisibility()")
    assert kept(page) == [] and page.text("#history-clear") is None
    page.tap("#history label")
    page.key("Escape")
    write(page, "My dog")
    is_translated(page, "DOG MY")
    assert kept(page) == [("My dog", "DOG MY")]


def test_the_history_has_the_last_fifty_and_those_that_no_model_is_for(opened):
    page = opened()
    old = [
        {"time": 0, "model": "x", "source_lang": "fr", "target_lang": "de", "text": f"t{i}"}
        for i in range(60)
    ]
    page.run(f"localStorage.setItem('transformer_mt.history', JSON.stringify({json.dumps(old)}))")
    write(page, "A dog")
    is_translated(page, "DOG A")
    assert len(kept_texts := page.run("JSON.parse(localStorage['transformer_mt.history'])")) == 50
    assert kept_texts[0]["text"] == "A dog" and kept_texts[49]["text"] == "t48"
    page.click("#history-open")
    second = "document.querySelector('#history li:nth-child(2) .open')"
    assert page.run(f"{second}.disabled")
    assert page.text("#history li:nth-child(2) .quiet") == "No model for French → German is loaded."
    page.key("Escape")
    page.run("localStorage.setItem('transformer_mt.history', '{broken')")
    page.click("#history-open")
    assert page.text("#history-empty") == "Nothing here yet."


def test_the_interface_in_chinese(opened):
    page = opened("#text=A+dog", language="zh-CN")
    is_translated(page, "DOG A")
    assert page.run("document.documentElement.lang") == "zh-CN"
    assert page.text("#source-language") == "英语" and page.text("#copy") == "复制"
    assert "1130万" in page.text("#about")
    page.click("#language")
    assert page.text("#source-language") == "English" and page.text("#copy") == "Copy"
    page.reload()
    page.until(READY)
    assert page.text("#copy") == "Copy"
    kinds = page.run("""import("./words.js").then(({LANGUAGES}) => Object.values(LANGUAGES).map(
        (words) => Object.entries(words).map(([name, text]) => name + typeof text)))""")
    assert sorted(kinds[0]) == sorted(kinds[1])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(opened, scheme):
    page = opened(width=360, height=740, scheme=scheme)
    page.tap("#source")
    page.type("A dog runs! " + "x" * 100)
    is_translated(page, "RUNS! DOG A " + "X" * 100)
    page.tap("#translation [data-word='1']")
    page.until("document.querySelectorAll('#others .output').length === 4")
    assert page.texts(".lit") == ["DOG"] and page.texts(".partner") == ["dog"]
    boxes = page.run("""[...["#others", "#translation .open", ".pane", ".pane + .pane"].map((one) =>
        document.querySelector(one).getBoundingClientRect())].map(({top, bottom, width}) =>
        ({top, bottom, width}))""")
    sheet, sentence, above, below = boxes
    assert sheet["bottom"] == 740 and sheet["width"] == 360 and sentence["bottom"] <= sheet["top"]
    assert below["top"] >= above["bottom"]
    assert page.run("document.documentElement.scrollWidth") == 360
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    assert dark == {"light": "rgb(246, 247, 249)", "dark": "rgb(15, 18, 22)"}[scheme]


def test_hostile_text_stays_text(opened):
    page = opened()
    elements = (
        "document.querySelectorAll('body *:not(#translation *, #mirror *, #others *)').length"
    )
    before = page.run(elements)
    write(page, "\n".join(HOSTILE))
    is_translated(page, *map(translated, HOSTILE))
    assert page.run("mirror.textContent") == "\n".join(HOSTILE) + "\n"
    page.click("#translation [role=button]")
    page.until("document.querySelectorAll('#others .output').length === 4")
    page.click("#others .output:nth-of-type(4)")
    assert page.run(elements) == before
    kinds = page.run("[...new Set([...document.querySelectorAll('#translation *, #mirror *')].map("
                     "(one) => one.tagName))].sort()")  # fmt: skip
    assert kinds == ["P", "SPAN"]


# ---- Sharing, copying, files ----


def test_files_are_translated_line_by_line(opened, models, tmp_path):
    source = (
        "one two\r\n\r\nthree. Four five!\n" + "".join(f"line {i}\n" for i in range(300)) + "end"
    )
    (tmp_path / "letter.en.txt").write_bytes(source.encode())
    (tmp_path / "old.txt").write_bytes("Grüße".encode("latin-1"))
    models[0].busy = 2
    page = opened()
    page.drop(tmp_path / "letter.en.txt", tmp_path / "old.txt")
    page.until("document.querySelectorAll('#files a:not([hidden])').length === 1")
    assert page.texts("#files li [role=status]")[0] == "304 lines translated"
    page.until("document.querySelector('#files .failed')")
    assert "UTF-8" in page.text("#files .failed")
    ends = re.findall(r"\r?\n|$", source)
    lines = [translated(line) for line in re.split(r"\r?\n", source)]
    expected = "".join(line + end for line, end in zip(lines, ends, strict=False))
    assert downloaded(page, tmp_path, "letter.de.txt") == expected
    assert max(map(len, asked(page))) <= 100 and models[0].busy == 0


# ---- A server that refuses, or goes away ----


def test_a_token_is_asked_for(browser, models):
    with running(*models, access=Access(tokens=Tokens({"": "secret"}))) as service:
        page = browser.page(service.url)
        page.until("document.querySelector('#token').checkVisibility()")
        page.click("#token-text")
        page.type("wrong")
        page.key("Enter")
        page.until("document.querySelector('#token-wrong').textContent")
        # A header can't hold it.
        odd = browser.page(service.url + "#token=中")
        odd.until("document.querySelector('#token-wrong').textContent")
        assert odd.errors() == []
        page.click("#token-text")
        page.type("secret")
        page.key("Enter")
        page.until(READY)
        write(page, "A dog")
        is_translated(page, "DOG A")
        page.reload()
        page.until(READY)
        other = browser.page(service.url + "#token=secret&text=A+cat")
        is_translated(other, "CAT A")
        assert other.run("location.hash") == "#text=A+cat"
        assert page.errors() == other.errors() == []


def test_a_server_that_goes_away_and_comes_back(opened, service):
    page = opened("#text=A+dog")
    is_translated(page, "DOG A")
    service.stop()
    page.click("#source")
    page.key("End")
    page.type(" runs. And more.")
    page.until("document.querySelector('#state').textContent.includes('does not answer')")
    assert page.run("source.value") == "A dog runs. And more."
    service.start()
    is_translated(page, "RUNS. DOG A MORE. AND")
    page.until("document.querySelector('#state').hidden")
