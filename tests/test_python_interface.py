"""What `from transformer_mt import` gives: names, results, errors and types."""

import re
import subprocess
import sys

import pytest

import transformer_mt
from tests.support import ROOT, demo_pairs, make_config, make_model_directory
from transformer_mt import Output, Translation, Translator, UsageError, UserError
from transformer_mt.utils import errors

PAIRS = demo_pairs(300)
LINES = [*(source for source, _ in PAIRS[:4]), ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interface")
    config = make_config(folder, decoding={"beam_size": 3})
    return make_model_directory(folder / "model", PAIRS, config).path


@pytest.fixture(scope="module")
def translator(folder):
    return Translator.load(folder, device="cpu")


# ---- Lines ----


@pytest.mark.parametrize("value", [None, float("nan"), b"A dog.", 3])
def test_what_is_no_line_is_named_by_its_place(translator, value):
    with pytest.raises(TypeError, match=re.escape(f"lines[1]: expected a str, got {value!r}")):
        translator.translate(["A dog.", value])
    with pytest.raises(UsageError, match=r"lines\[1\]: there is a line end in it"):
        translator.translate(["A dog.", "A dog.\nA cat."])
    with pytest.raises(TypeError, match="a list of lines"):
        translator.translate("One line.")
    for method in (translator.scores, translator.alignments):
        with pytest.raises(TypeError, match=r"pairs\[1\]\[1\]: expected a str, got "):
            list(method([("A dog.", "Ein Hund."), ("A dog.", value)]))


# ---- Names ----


def test_the_names_are_listed_and_found():
    assert dir(transformer_mt) == transformer_mt.__all__ == sorted(transformer_mt.__all__)
    for name in transformer_mt.__all__:
        assert getattr(transformer_mt, name) is not None
    assert UserError is errors.UserError and UsageError is errors.UsageError
    with pytest.raises(AttributeError, match="'transformer_mt' has no attribute 'Translater'"):
        transformer_mt.Translater  # noqa: B018
    with pytest.raises(ImportError):
        from transformer_mt import Translater  # noqa: F401


def test_nothing_heavy_is_imported_for_a_name():
    code = (
        "import sys, transformer_mt; dir(transformer_mt); light = set(sys.modules);"
        "from transformer_mt import *; Translator, Line; print('sentencepiece' in light, "
        "'paddle' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout == "False False\n"


# ---- What translate returns ----


def test_texts_and_objects(folder, translator):
    texts = translator.translate(LINES)
    assert all(type(text) is str for text in texts) and len(texts) == 5 and texts[4] == ""
    for asked in ({}, {"n_best": 3}, {"alignment": True}):
        found = translator.translate_full(iter(LINES), **asked)
        assert [type(one) for one in found] == [Translation] * 5
        assert [one.text for one in found] == texts
        for one in found[:4]:
            assert all(isinstance(output, Output) for output in one)
            assert list(one) == one.outputs and 1 <= len(one.outputs) <= asked.get("n_best", 1)
            first = one.outputs[0]
            assert (one.text, one.score, one.pieces) == (first.text, first.score, first.pieces)
            assert one.alignment == first.alignment and one.words == first.words
            has_alignment = asked.get("alignment", False)
            assert (one.alignment is not None) == (one.source_words is not None) == has_alignment
    assert any(len(one.outputs) == 3 for one in translator.translate_full(LINES, n_best=3))
    assert translator.translate(LINES) == texts  # a call changes nothing for the next


def test_settings_of_a_call_are_those_of_load_or_come_before_them(folder, translator):
    always = Translator.load(folder, device="cpu", n_best=2)
    counts = []
    assert len(always.translate_full(LINES[:1], counts.append, n_best=1)[0].outputs) == 1
    assert len(always.translate_full(LINES[:1], finished=counts.append)[0].outputs) == 2
    assert sum(counts) == 2
    settings = {"sampling": True, "seed": 5, "temperature": 2.0}
    drawn = translator.translate(LINES, **settings)
    assert drawn == Translator.load(folder, device="cpu", **settings).translate(LINES)
    assert drawn != translator.translate(LINES) and drawn[4] == ""


# ---- What is wrong ----


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("beam_sise", "did you mean beam_size?"),
        ("beam", "did you mean beam_size?"),  # as other toolkits call it
        ("nbest", "did you mean n_best?"),
        ("batch_token", "did you mean batch_tokens?"),  # not that of training
        ("frobnicate", "the settings are beam_size, "),
    ],
)
def test_an_unknown_option_names_the_nearest(translator, folder, name, hint):
    for function in (translator.translate, lambda _, **asked: Translator.load(folder, **asked)):
        with pytest.raises(TypeError) as error:
            function(LINES, **{name: 1})
        assert f"has no argument '{name}'; {hint}" in str(error.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"beam_size": 0}, "decoding.beam_size: 0: expected"),
        ({"beam_size": "5"}, "decoding.beam_size: '5': expected a whole number"),
        ({"n_best": 4}, r"decoding.n_best: 4: is more than decoding.beam_size \(3\)"),
        ({"n_best": True}, "decoding.n_best: True: expected a whole number"),
        ({"top_p": 2.0}, "decoding.top_p: 2.0"),
    ],
)
def test_settings_are_checked(translator, folder, settings, problem):
    for function in (translator.translate, lambda _, **asked: Translator.load(folder, **asked)):
        with pytest.raises(UsageError, match=problem):
            function(LINES, **settings)


def test_what_a_model_can_not_do_is_refused_at_once(tmp_path):
    config = make_config(tmp_path, model={"non_autoregressive": "length"})
    folder = make_model_directory(tmp_path / "model", PAIRS, config).path
    translator = Translator.load(folder, device="cpu", n_best=1)
    assert type(translator.translate_full(LINES)[0]) is Translation
    for asked in ({"n_best": 2}, {"alignment": True}, {"sampling": True}):
        with pytest.raises(UsageError, match="non-autoregressive"):
            translator.translate_full(LINES, **asked)


# ---- Types ----


# What a checker must say about the code of a user: the type of an expression.
TYPES = [
    ('Translator.load("m").translate(["a"])', "list[str]"),
    ('Translator.load("m", "best", beam_size=1, threads=2)', "Translator"),
    ('Translator.load("m").translate_full([], n_best=1, seed=2)', "list[Translation]"),
    ('list(Translator.load("m").translate_full([])[0])', "list[Output]"),
    ('Translator.load("m").translate_full([])[0].alignment', "list[tuple[int, int]] | None"),
    ('Translator.load("m").translate_full([])[0].words', "list[tuple[int, int]] | None"),
    ('list(Translator.load("m").scores([("a", "b")]))', "list[float]"),
    ('list(Translator.load("m").alignments([("a", "b")]))[0].links', "list[tuple[int, int]]"),
    ("transformer_mt.__version__", "str"),
]
WRONG = ['Translator.load("m").translate([1])', "transformer_mt.Translater"]
USER_CODE = """\
import transformer_mt
from transformer_mt import Translation, Translator, UserError

def answer(translator: Translator, lines: list[str]) -> list[str]:
    return translator.translate(lines)

def first(translator: Translator, line: str) -> float:
    return translator.translate_full([line])[0].score

"""


@pytest.mark.slow
def test_type_checkers_know_what_is_returned(tmp_path):
    lines = [*USER_CODE.splitlines(), *(f"reveal_type({code})" for code, _ in TYPES), *WRONG]
    (tmp_path / "user.py").write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=",
         "--python-version=3.10", "user.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )  # fmt: skip
    shape = r'(?m)^user.py:(\d+): (?:error: |note: Revealed type is "(.*)")'
    found = {int(number): kind for number, kind in re.findall(shape, done.stdout)}
    kinds = [re.sub(r"\b(builtins|transformer_mt\.[\w.]+)\.", "", kind) for kind in found.values()]
    assert kinds == [*(kind for _, kind in TYPES), *("" for _ in WRONG)], done.stdout
    # Nothing is wrong with the code before.
    assert list(found) == list(range(len(USER_CODE.splitlines()) + 1, len(lines) + 1))
