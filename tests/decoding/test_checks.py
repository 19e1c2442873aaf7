"""Checks of translations: what they name, and what they leave alone."""

import copy
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import demo_pairs, make_config, make_model_directory
from transformer_mt import Translator
from transformer_mt.config.text import PROTECTED_CLASSES
from transformer_mt.data.spans import SpanFinder
from transformer_mt.decoding.checks import KINDS, LOSSES, is_loss, warnings_of

FINDER = SpanFinder([name for name in PROTECTED_CLASSES if name != "numbers"])


def found(source, text, target_lang="de", source_lang="en", finder=FINDER):
    return list(map(tuple, warnings_of(source, text, finder, source_lang, target_lang)))


def kinds(*arguments, **options):
    return [kind for kind, _ in found(*arguments, **options)]


# ---- What is lost ----


@pytest.mark.parametrize(
    "source, text, whats",
    [
        ("Delete {count} files", "{count} Dateien löschen", []),
        ("Delete {count} files", "Dateien löschen", ["{count} is missing"]),
        ("Delete the files", "{count} Dateien löschen", ["{count} is not in the source"]),
        (
            "Delete {count} files",
            "{zahl} Dateien löschen",
            ["{count} is missing", "{zahl} is not in the source"],
        ),
        ("%s or %s", "%s oder %s oder %s", ["%s is there 3x, but 2x in the source"]),
        ("See https://a.org/b.", "Siehe https://a.org/c.", ["https://a.org/b is missing",
            "https://a.org/c is not in the source"]),
        ("A <b>big</b> <i>dog</i>", "<i>Hund</i>, <b>groß</b>", []),
        ("A <b>big</b> dog", "Ein großer</b> <b>Hund", ["<b> and </b> do not form a pair"]),
        ("<b>A</b> <i>dog</i>", "<b>Ein <i>Hund</b></i>", ["<i> and </i> do not form a pair"]),
        ("A <b>dog", "Ein <b>Hund", []),  # no pair in the source either
        ("A <b>dog</b>", "Ein Hund<b> </b>", ["nothing is between <b> and </b>"]),
        ("<a><b>A</b></a> dog", "<a><b></b></a>Ein Hund", ["nothing is between <a> and </a>",
            "nothing is between <b> and </b>"]),
        ("<a></a>A dog <a>here</a>", "<a></a>Ein Hund <a>hier</a>", []),
        ("Save [here](a.htm)", "[Hier](a.htm) speichern", []),
    ],
)  # fmt: skip
def test_spans(source, text, whats):
    assert found(source, text) == [("span", what) for what in whats]


@pytest.mark.parametrize(
    "source, text, lang, whats",
    [
        ("It costs 1,000.5 euros", "Es kostet 1.000,5 Euro", "de", []),
        ("It costs 1,000.5 euros", "Es kostet 1 000,50 Euro", "de", []),
        ("It costs 1,000.5 euros", "Es kostet 1.000,6 Euro", "de",
         ["1,000.5 is missing", "1.000,6 is not in the source"]),
        ("Over 30000 requests", "Mehr als 30.000 Anfragen", "de", []),
        ("Over 1,234,567 requests", "Mehr als 1234567 Anfragen", "de", []),
        ("Over 12,34,567 requests", "Mehr als 1.234.567 Anfragen", "de", []),
        ("Scale it by 1.5", "Skalieren Sie um 15", "de",
         ["1.5 is missing", "15 is not in the source"]),
        ("On the 3rd day", "Am 3. Tag", "de", []),
        ("On 2020-12-05", "Am 05.12.2020", "de", []),
        ("Version 7.4.7", "Version 7.4.6", "de",
         ["7.4.7 is missing", "7.4.6 is not in the source"]),
        ("Delete 3 files", "Löschen Sie drei Dateien", "de", []),
        ("Delete three files", "3 Dateien löschen", "de", []),
        ("Delete 3 files", "Löschen Sie vier Dateien", "de", ["3 is missing"]),
        ("Delete 3 files", "Dateien löschen", "de", ["3 is missing"]),
        ("Delete 3 or 3 files", "3 Dateien löschen", "de", ["3 is missing"]),
        ("Delete files", "5 Dateien löschen", "de", ["5 is not in the source"]),
        ("A thousand files", "1000 Dateien", "de", []),
        ("At 3 pm", "Um 15 Uhr", "de", []),
        ("At 2:30", "Um halb drei", "de", []),
        ("3 million people", "3.000.000 Menschen", "de", []),
        ("Delete 3 files", "删除三个文件", "zh", []),
        ("Delete 2 files", "删除两个文件", "zh", []),
        ("Delete 3 files", "删除３个文件", "zh", []),
        ("Delete 3 files", "删除文件", "zh", ["3 is missing"]),
        ("30,000 people", "3万人", "zh", []),
        ("2.5 billion people", "25亿人", "zh", []),
        ("30,000 people", "4万人", "zh", ["30,000 is missing", "4 is not in the source"]),
        ("December 5, 2020", "2020年12月5日", "zh", []),
        ("Press {F1} 3 times", "Drücken Sie dreimal {F1}", "de", []),  # 1 is in a span
    ],
)  # fmt: skip
def test_numbers(source, text, lang, whats):
    assert found(source, text, lang) == [("number", what) for what in whats]
    if not whats:
        assert found(text, source, "en", lang) == []


def test_an_empty_translation():
    for text in ("", " \u3000", "<br/>"):
        assert kinds("Delete it<br/>", text) == ["empty"]
    assert kinds("Delete {name} now", "{name}") == ["empty"]
    assert found("", "") == found("…", "") == found(" ", " ") == []
    assert kinds("{name}", "") == ["span"]


def test_what_is_a_loss():
    assert is_loss(warnings_of("3 dogs", "", None, "en", "de"))
    assert not is_loss(warnings_of("A dog.", "Ein Hund?", None, "en", "de"))
    assert set(LOSSES) < set(KINDS)


# ---- What looks wrong ----


@pytest.mark.parametrize(
    "source, text, source_lang, target_lang, is_named",
    [
        ("Is it here?", "它在这里吗？", "en", "zh", False),
        ("Is it here?", "它在这里。", "en", "zh", True),
        ("Is it here?", "Ist es hier.", "en", "de", True),
        ("Is it <b>here</b>?", "Ist es <b>hier?</b>", "en", "de", False),
        ('He asked: "Where?"', "Er fragte: „Wo?“", "en", "de", False),
        ("Is it here?", "Είναι εδώ;", "en", "el", False),
        ("Come here.", "Komm her!", "en", "de", False),
        ("Really?!", "Wirklich?", "en", "de", False),
        ("Save as", "Speichern unter…", "en", "de", False),
        ("The files:", "Die Dateien.", "en", "de", True),
        ("Save", "Speichern.", "en", "de", True),
        ("Text that is added to an object", "Text, der hinzugefügt wird.", "en", "de", False),
        ("I went home.", "Ich ging nach Hause", "en", "de", True),
        ("I went home.", "ฉันกลับบ้าน", "en", "th", False),
    ],
)
def test_the_mark_at_the_end(source, text, source_lang, target_lang, is_named):
    assert kinds(source, text, target_lang, source_lang) == ["punctuation"] * is_named


def test_length():
    source = "Mark the user dictionaries that you want to use for spelling and hyphenation."
    assert kinds(source, "Markieren Sie das.") == ["length"]
    assert kinds(source, "选择拼写检查和断词时要使用的自定义词典。", "zh") == []
    assert kinds("是的。", "Yes, it is.", "en", "zh") == []
    long = "Die Benutzerwörterbücher, die Sie verwenden, stehen in einer Liste, in der man wählt."
    assert kinds("Dictionaries used.", long) == ["length"]


@pytest.mark.parametrize(
    "source, text, lang, is_named",
    [
        ("A man in a red shirt walks.", "Ein Mann in einem Hemd in einem Hemd in einem Hemd.", "de",
         True),
        ("A man in a red shirt walks.", "Ein Mann in einem roten in einem roten Hemd geht.", "de",
         False),  # only three words, and twice
        ("That is very, very good.", "Das ist sehr, sehr gut.", "de", False),
        ("That is good for us.", "Das ist gut gut gut gut für uns.", "de", True),
        ("The housing of the boat.", "Das Gehehehehehehe des Bootes.", "de", True),
        ("Ha ha ha ha ha, he said.", "Ha ha ha ha ha, sagte er.", "de", False),
        ("It is 0 0 0 0 0 here.", "Hier ist es 0 0 0 0 0.", "de", False),
        ("A man walks through a street.", "一个男人走过一个男人走过一个男人走过街。", "zh", True),
        ("Everybody walks slowly.", "大家慢慢地走走看看。", "zh", False),
    ],
)  # fmt: skip
def test_repetition(source, text, lang, is_named):
    assert kinds(source, text, lang) == ["repetition"] * is_named


def test_copies():
    assert kinds("Mark all of the user dictionaries", "Mark all of the user dictionaries") == [
        "copied"
    ]
    assert kinds("选择用户词典", "选择用户词典", "en", "zh") == ["copied"]
    for name in ("LibreOffice Writer", "Home Assistant", "sudo apt-get update", "{a} {b} {c} {d}"):
        assert found(name, name) == []
    assert found("The dog is here", "The dog is here", "en-GB", "en") == []


# ---- Any text ----

PIECES = [
    "<b>",
    "</b>",
    "<i>",
    "</i>",
    "{a}",
    "%s",
    "3",
    "1,000.5",
    "三",
    "?",
    "。",
    " ",
    "dog",
    "狗",
]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))
LANGS = st.sampled_from(["en", "de", "zh", "ja", "th", "el", "", "qqq"])


@given(TEXTS, TEXTS, LANGS, LANGS, st.sampled_from([FINDER, None]))
def test_any_text_can_be_checked(source, text, source_lang, target_lang, finder):
    for kind, what in found(source, text, target_lang, source_lang, finder):
        assert kind in KINDS and what and "\ue000" not in what.strip("\ue000\ue001")
    # A text lost nothing of itself.
    assert set(kinds(source, source, target_lang, source_lang, finder)) <= {"copied"}


@given(st.lists(st.sampled_from(["{a}", "%s", "<br/>", "dog", "runs", "<b>x</b>"])), st.randoms())
def test_spans_may_move(words, draw):
    source = " ".join(words)
    draw.shuffle(words)
    assert "span" not in kinds(source, " ".join(words))
    if spans := [word for word in words if not word.isalpha()]:
        words.remove(spans[0])
        if any(map(str.isalpha, words)):
            assert "span" in kinds(source, " ".join(words))


@given(st.integers(13, 10**9), st.integers(13, 10**9))
def test_a_number_is_the_same_in_every_way_of_writing(number, other):
    source = f"There are {number:,} dogs"
    for text in (f"{number}", f"{number:,}".replace(",", "."), f"{number:,}".replace(",", " ")):
        assert found(source, f"Es gibt {text} Hunde") == []
    # 1,500 may be 1.5 too, where a comma stands for a point.
    if other * 1000 != number and number != other:
        assert "number" in kinds(source, f"Es gibt {other} Hunde")


@given(st.integers(), st.lists(st.integers(0, 30), max_size=20))
def test_numbers_in_another_order(seed, numbers):
    source, moved = list(map(str, numbers)), list(map(str, numbers))
    random.Random(seed).shuffle(moved)
    assert "number" not in kinds("; ".join(source), "; ".join(moved), "fr")
    if len(moved) > 1:
        assert "number" in kinds("; ".join(source), "; ".join(moved[1:]), "fr")


def test_a_long_line_takes_no_long_time():
    line = "dog 1,5 <b> 12 {a} " * 1_000
    assert "span" in kinds(line, line[:-20])


# ---- A translation ----


def test_translations_tell_their_warnings(tmp_path):
    config = make_config(tmp_path)
    model = make_model_directory(tmp_path / "model", demo_pairs(100), config).path
    translator = Translator.load(model, protect=["placeholders"])
    lines = ["The 777 dogs of {name}", "", "{name}"]
    for translation, line in zip(translator.translate_full(lines), lines, strict=True):
        expected = warnings_of(line, translation.text, SpanFinder(["placeholders"]), "en", "de")
        assert translation.warnings == expected == translation.check(translation.text)
        assert not any(warning.kind == "span" for warning in translation.warnings)
        for other in (pickle.loads(pickle.dumps(translation)), copy.deepcopy(translation)):
            assert other == translation and other.warnings == expected
    (unprotected,) = translator.translate_full(["{name} 777"], protect=[])
    assert {warning.kind for warning in unprotected.warnings} <= set(KINDS) - {"span"}
