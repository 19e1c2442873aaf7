"""Text in, text out: with models that were never trained, for what they say does not matter here.

Their weights are wide (see support.wide_model): probabilities differ by much more than rounding, so
that translations are equal however sentences are put together.
"""

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import make_config, train_subwords, wide_model

from transformer_mt.data.subword import Subwords, WordVocabulary
from transformer_mt.decoding import translator as translator_module
from transformer_mt.decoding.translator import Translator, decoded, input_lines

ENGLISH = [
    "A dog runs through the grass.",
    "Two men are sitting on a bench!",
    "The girl in the red dress sings a song, and her brother plays the piano.",
    "Where is the nearest station?",
    "It costs 3.50 € at the café.",
]
GERMAN = [
    "Ein Hund läuft durch das Gras.",
    "Zwei Männer sitzen auf einer Bank!",
    "Das Mädchen im roten Kleid singt ein Lied, und ihr Bruder spielt Klavier.",
    "Wo ist der nächste Bahnhof?",
    "Im Café kostet es 3,50 €.",
]
# Characters that some would end a line at. A vocabulary that has them may put them out.
ODD = "a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h\ti\x00j"
PAIRS = [*zip(ENGLISH, GERMAN, strict=True), (ODD, ODD)]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return make_config(tmp_path_factory.mktemp("translator"))


@pytest.fixture(scope="module")
def model(config):
    subwords = train_subwords(PAIRS, 150)
    return wide_model(config, subwords), subwords


def make_translator(model, config, max_length=200, target_lang="de", **decoding):
    weights, subwords = model
    settings = config.decoding.model_copy(update=decoding)
    return Translator(weights, subwords, settings, max_length, target_lang)


@pytest.fixture(scope="module")
def translator(model, config):
    return make_translator(model, config)


@pytest.fixture(scope="module")
def words(config):
    """A model that reads words between spaces: what its parts are is plain to see."""
    tokens = ["<s>", "<e>", "<unk>", *(f"w{i}" for i in range(20)), "w@@", "x@@"]
    vocabulary = WordVocabulary(tokens)
    subwords = Subwords(vocabulary, vocabulary)
    return wide_model(config, subwords), subwords


# ---- One line for one line ----

ANY_LINE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30),
    st.sampled_from(
        ["", " ", "\t \u3000", "\x00", "\r", "👩‍👩‍👧 🇩🇪", "שלום עולם", "\u2028", "\ufeff", ODD]
    ),
    st.sampled_from(ENGLISH),
)


@settings(max_examples=40, deadline=None)
@given(lines=st.lists(ANY_LINE, max_size=8))
def test_one_line_for_one_line(translator, lines):
    translations = list(translator.translate(lines))
    assert len(translations) == len(lines)
    for line, translation in zip(lines, translations, strict=True):
        assert "\n" not in translation and "\r" not in translation
        translation.encode("utf-8")
        if not line.strip():
            assert translation == ""


def test_a_line_break_in_the_output_becomes_a_space(model, config, monkeypatch):
    """The vocabulary here holds a carriage return, and the model says nothing else."""
    translator = make_translator(model, config)
    carriage_return = model[1].target.encode("a\rb")
    monkeypatch.setattr(translator, "_search", lambda rows: [carriage_return for _ in rows])
    assert model[1].target.decode(carriage_return) == "a\rb"
    assert list(translator.translate(["x"])) == ["a b"]


def test_nothing_to_translate(translator):
    assert list(translator.translate([])) == []
    assert list(translator.translate(["", " ", "\t"])) == ["", "", ""]


# ---- Batches ----


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_does_not_depend_on_the_others(model, config, beam_size):
    lines = [f"{ENGLISH[i % 5]} {'and so on ' * (i % 7)}{i}" for i in range(30)]
    lines[4] = lines[17] = ""
    whole = make_translator(model, config, beam_size=beam_size)
    together = list(whole.translate(lines))
    assert len(set(together)) > 20  # the model does tell them apart
    assert [next(whole.translate([line])) for line in lines] == together
    small_batches = make_translator(model, config, beam_size=beam_size, batch_tokens=60)
    assert list(small_batches.translate(lines)) == together
    assert list(small_batches.translate(lines[::-1])) == together[::-1]


def test_a_batch_of_one_token_takes_a_line_at_a_time(model, config):
    assert len(list(make_translator(model, config, batch_tokens=1).translate(ENGLISH))) == 5


def test_the_longest_come_first_and_batches_keep_to_their_size(model, config, monkeypatch):
    translator = make_translator(model, config, batch_tokens=80)
    batches = []
    search = translator._search
    monkeypatch.setattr(translator, "_search", lambda rows: batches.append(rows) or search(rows))
    list(translator.translate(ENGLISH * 3))
    lengths = [len(row) for batch in batches for row in batch]
    assert lengths == sorted(lengths, reverse=True) and len(lengths) == 15
    for batch in batches:
        padded = len(batch) * (max(map(len, batch)) + 1)  # with eos
        assert padded <= 80 or len(batch) == 1
    assert len(batches) < 15


def test_the_output_is_as_long_as_the_config_allows(words, config):
    translator = make_translator(words, config, max_length_ratio=0.5, max_length_extra=2)
    lines = [" ".join(["w1"] * length) for length in (1, 2, 9)]
    lengths = [len(ids) for ids in translator._search([[5] * 1, [5] * 2, [5] * 9])]
    assert all(length <= most for length, most in zip(lengths, (2, 3, 6), strict=True))
    assert len(list(translator.translate(lines))) == 3


def test_the_model_goes_on_training_as_before(model, config):
    weights = model[0]
    translator = make_translator(model, config)
    for mode in (True, False):
        weights.train() if mode else weights.eval()
        list(translator.translate(ENGLISH[:1]))
        assert weights.training is mode


# ---- Over-long lines ----


@pytest.mark.parametrize(("target_lang", "glue"), [("de", " "), ("zh", "")])
def test_an_overlong_line_is_translated_in_parts(words, config, capsys, target_lang, glue):
    tokens = [f"w{(7 * i * i + i) % 20}" for i in range(23)]
    translator = make_translator(words, config, max_length=10, target_lang=target_lang)
    lines = ["w1 w2", " ".join(tokens), "", "w3"]
    translations = list(translator.translate(lines))
    messages = capsys.readouterr().err
    assert messages == ("warning: line 2: 23 subwords, translated in 3 parts of at most 10\n")
    parts = [" ".join(tokens[start : start + 10]) for start in (0, 10, 20)]
    assert translations[1] == glue.join(translator.translate(parts))
    assert [translations[0], translations[3]] == list(translator.translate(["w1 w2", "w3"]))
    assert capsys.readouterr().err == ""


def test_a_line_of_just_the_longest_length_is_whole(words, config, capsys):
    translator = make_translator(words, config, max_length=10)
    list(translator.translate([" ".join(["w1"] * 10)]))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("batch_tokens", [1, 30, 4096])
def test_progress_counts_every_line_once(words, config, batch_tokens):
    translator = make_translator(words, config, max_length=5, batch_tokens=batch_tokens)
    lines = ["w1", "", "w1 w2 w3 " * 6, " ", "w4 w5 w6 w7 w8 w9", "w2"]
    counts = []
    list(translator.translate(lines, counts.append))
    assert sum(counts) == len(lines) and min(counts) >= 0


# ---- Windows: any number of lines in bounded memory ----


def test_windows_keep_the_order_and_the_line_numbers(words, config, capsys, monkeypatch):
    lines = [f"w{i} w{i + 1}" for i in range(11)]
    lines[7] = "w1 w2 w3 w4 w5 w6 w7"
    lines[9] = ""
    translator = make_translator(words, config, max_length=5)
    at_once = list(translator.translate(lines))
    expected = capsys.readouterr().err
    assert expected == "warning: line 8: 7 subwords, translated in 2 parts of at most 5\n"
    monkeypatch.setattr(translator_module, "WINDOW", 3)
    assert list(translator.translate(lines)) == at_once
    assert capsys.readouterr().err == expected


def test_the_first_lines_are_put_out_before_the_last_are_read(words, config, monkeypatch):
    monkeypatch.setattr(translator_module, "WINDOW", 3)
    read = []

    def lines():
        for i in range(9):
            read.append(i)
            yield "w1"

    translations = make_translator(words, config).translate(lines())
    next(translations)
    assert read == [0, 1, 2]
    assert len(list(translations)) == 8


# ---- Files as they are ----


def test_bytes_that_are_not_utf8(tmp_path, capsys):
    path = tmp_path / "in.txt"
    path.write_bytes("one\nM\xe4rz\nthree\n\xff\xfe".encode("latin-1"))
    assert list(input_lines(path)) == ["one", "M\ufffdrz", "three", "\ufffd\ufffd"]
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2
    assert f"{path}, line 2" in warnings[0] and f"{path}, line 4" in warnings[1]
    assert "not UTF-8" in warnings[0] and "U+FFFD" in warnings[0]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\r\n"])
def test_byte_order_mark_line_ends_and_a_missing_last_newline(tmp_path, ending, last, capsys):
    path = tmp_path / "in.txt"
    rows = [
        "\ufeffone".encode(), b"", "two\u2028\x85\x0b\x0c\x1c.".encode(), b"a\rb", b"last"
    ]  # fmt: skip
    path.write_bytes(ending.join(rows) + last)
    assert list(input_lines(path)) == ["one", "", "two\u2028\x85\x0b\x0c\x1c.", "a\rb", "last"]
    assert capsys.readouterr().err == ""


def test_empty_and_gzipped_files(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    assert list(input_lines(tmp_path / "empty")) == []
    (tmp_path / "in.gz").write_bytes(gzip.compress("Käse\n\n".encode()))
    assert list(input_lines(tmp_path / "in.gz")) == ["Käse", ""]


def test_a_byte_order_mark_is_one_at_the_very_beginning_only():
    lines = ["\ufeffa".encode(), "\ufeffb".encode()]
    assert list(decoded(lines, "stdin")) == ["a", "\ufeffb"]


# ---- Text with BPE applied ----


def test_text_without_its_bpe_is_noticed(words, config, capsys):
    translator = make_translator(words, config)
    list(translator.translate(["w1 w2 w3", "Plain text, w1"]))
    assert capsys.readouterr().err.startswith("warning: line 2: 2 of 3 tokens are not in the voc")


def test_bpe_is_removed_from_the_output(words, config, monkeypatch):
    translator = make_translator(words, config)
    said = words[1].target.encode("w@@ x@@ w1 w2 w@@ w3 x@@")
    monkeypatch.setattr(translator, "_search", lambda rows: [said for _ in rows])
    assert list(translator.translate(["w1"])) == ["wxw1 w2 ww3 x"]
