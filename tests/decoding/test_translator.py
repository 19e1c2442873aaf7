"""Text in, text out: with models that were never trained, for what they say does not matter here.

Their weights are wide (see support.wide_model): probabilities differ by much more than rounding, so
that translations are equal however sentences are put together.
"""

import math
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support import important, make_config, train_subwords, wide_model
from tests.support import words as words_between_spaces
from transformer_mt.data.normalization import is_blank
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding import lines as lines_module
from transformer_mt.decoding.engine import Hypothesis
from transformer_mt.decoding.line_reader import MAX_AT_ONCE
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.decoding.output import Line
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.translator import engine_processes

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
    return translator_with(PaddleEngine([weights], subwords), subwords, config, max_length,
                           target_lang, **decoding)  # fmt: skip


def translator_with(engine, subwords, config, max_length=200, target_lang="de", source_lang="en",
                    tags=(), **decoding):  # fmt: skip
    data = {"max_length": max_length, "target_lang": target_lang, "source_lang": source_lang}
    changes = {"data": data, "subword": {"user_symbols": tags}, "decoding": decoding}
    sections = {key: getattr(config, key).model_copy(update=own) for key, own in changes.items()}
    return LineTranslator(engine, subwords, config.model_copy(update=sections))


class Recorded:
    """An engine that remembers its batches."""

    def __init__(self, engine):
        self.engine = engine
        self.batches = []

    def search(self, sentences, *options):
        self.batches.append(sentences)
        return self.engine.search(sentences, *options)


class Says:
    """An engine that always finds the same hypotheses."""

    def __init__(self, *hypotheses):
        self.hypotheses = hypotheses

    def search(self, sentences, settings):
        return [[self.of(*hypothesis) for hypothesis in self.hypotheses] for _ in sentences]

    def of(self, ids, log_prob=-1.0):
        return Hypothesis(ids, log_prob, log_prob)

    def cross_attention(self, sources, targets):
        attention = []
        for source, target in zip(sources, targets, strict=True):
            attention.append(np.zeros((len(target), len(source)), np.float32))
            # The first subword attends to the last one of the source, and so on.
            for i in range(min(attention[-1].shape)):
                attention[-1][i, -1 - i] = 0.9
        return attention


def line_windows(*windows):
    return ([Line(text) for text in window] for window in windows)


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

INVISIBLE = ["\u200b", "\ufeff \u200e", "\u00ad\u2067\u200d"]
ANY_LINE = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=30),
    st.sampled_from(["", " ", "\t \u3000", "\x00", "\r", "👩‍👩‍👧 🇩🇪", "שלום עולם", *INVISIBLE]),
    st.sampled_from(["\u2028", "\ud800", "a\nb", ODD, *ENGLISH]),
)


@settings(max_examples=40, deadline=None)
@given(lines=st.lists(ANY_LINE, max_size=8))
def test_one_line_for_one_line(translator, lines):
    translations = translator.translate(lines)
    assert len(translations) == len(lines)
    for line, translation in zip(lines, translations, strict=True):
        assert "\n" not in translation and "\r" not in translation
        translation.encode("utf-8")
        if not line.strip() or line in INVISIBLE:
            assert translation == ""


def test_a_line_break_in_the_output_becomes_a_space(model, config):
    """The vocabulary here holds a carriage return, and the model says nothing else."""
    carriage_return = model[1].target.encode("a\rb")
    assert model[1].target.decode(carriage_return) == "a\rb"
    translator = translator_with(Says([carriage_return]), model[1], config)
    assert translator.translate(["x"]) == ["a b"]


# ---- Batches ----


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_translation_does_not_depend_on_the_others(model, config, beam_size):
    lines = [f"{ENGLISH[i % 5]} {'and so on ' * (i % 7)}{i}" for i in range(18)]
    lines[4] = lines[15] = ""
    options = {"beam_size": beam_size, "min_length_ratio": 0.9, "stop_loops": False}
    whole = make_translator(model, config, **options)
    together = whole.translate(lines)
    assert len(set(together)) > 12  # the model does tell them apart
    assert [whole.translate([line])[0] for line in lines] == together
    small_batches = make_translator(model, config, **options, batch_tokens=60)
    assert small_batches.translate(lines) == together
    assert small_batches.translate(lines[::-1]) == together[::-1]


# ---- What is found for a line ----


def test_n_best_outputs_with_their_scores(model, config):
    translator = make_translator(model, config, beam_size=4, n_best=3, length_penalty=0.7)
    for translation in translator.stream(line_windows(ENGLISH, ["", " "])):
        if not translation.source.strip():
            assert [output.text for output in translation.outputs] == [""]
            assert translation.source_pieces == []
            continue
        scores = [output.score for output in translation.outputs]
        assert 1 <= len(scores) <= 3 and scores == sorted(scores, reverse=True)
        assert len({output.text for output in translation.outputs}) == len(scores)
        for output in translation.outputs:
            length = len(output.pieces) + 1  # with eos
            assert output.score == pytest.approx(output.log_prob / ((5 + length) / 6) ** 0.7)
            assert model[1].target.decode([]) == ""
            assert "".join(output.pieces).replace("\u2581", " ").strip() == output.text.strip()
            assert output.alignment is None


@pytest.fixture
def says(config):
    """A function that gives a translator that always finds texts with these scores. Each text is
    some subwords; `a@@ b` is `ab` in other ones."""
    vocabulary = WordVocabulary(["<s>", "<e>", "<unk>", "a@@", "b", "ab", "c", "w"])
    subwords = Subwords(vocabulary, vocabulary)

    def says(*found, **options):
        ids = [(vocabulary.encode(text), score) for text, score in found]
        options = {"length_penalty": 0.0, "n_best": len(found), "beam_size": len(found), **options}
        return translator_with(Says(*ids), subwords, config, **options)

    return says


def outputs(translator, text="w"):
    (translation,) = translator.stream(line_windows([text]), need_alignment=True)
    return [(output.text, " ".join(output.pieces), output.score) for output in translation.outputs]


def test_the_same_text_in_other_subwords_is_one_output(says):
    found = [("a@@ b", -1.0), ("c", -2.0), ("ab", -3.0), ("c a@@ b", -5.0), ("c ab", -5.5)]
    expected = [("ab", "a@@ b", -1.0), ("c", "c", -2.0), ("c ab", "c a@@ b", -5.0)]
    assert outputs(says(*found)) == expected
    # But draws that are alike stay.
    drawn = [text for text, *_ in outputs(says(*found, sampling=True))]
    assert drawn == ["ab", "c", "ab", "c ab", "c ab"]


def test_the_first_output_of_a_line_in_parts_is_the_best_of_each_part(says):
    """It is the translation that the line has with one output, though the second best of each part
    together, which are longer, are better by the penalty."""
    found = [("c", -1.0), ("a@@ b c c c c", -1.5), ("ab c c c c", -1.6)]
    translator = says(*found, max_length=2, length_penalty=1.0, length_penalty_kind="average")
    texts = outputs(translator, "w w w w")
    assert [text for text, *_ in texts] == ["c c", "ab c c c c ab c c c c"]
    assert [score for *_, score in texts] == pytest.approx([-2.0 / 4, -3.0 / 14])


def test_given_translations_get_the_scores_that_the_search_gave_them(words, config):
    model = words
    translator = make_translator(model, config, beam_size=4, n_best=2, batch_tokens=40)
    lines = [" ".join(f"w{(i * k) % 20}" for k in range(1, 2 + i % 6)) for i in range(25)]
    found = [
        (translation.source, output)
        for translation in translator.stream(line_windows(lines))
        for output in translation.outputs
        # The search may find an output in other subwords than those that its text has.
        if model[1].target.pieces(model[1].target.encode(output.text)) == output.pieces
    ]
    assert len(found) > 5
    counts = []
    scores = translator.scores(((source, output.text) for source, output in found), counts.append)
    assert list(scores) == pytest.approx([output.score for _, output in found], abs=1e-4)
    assert sum(counts) == len(found)
    assert list(translator.scores([])) == []
    (nothing,) = translator.scores([("", "")])
    assert -100 < nothing < 0


def test_sampling_follows_from_the_seed_and_the_line(model, config):
    def drawn(*windows, first=1, **decoding):
        translator = make_translator(model, config, sampling=True, n_best=2, **decoding)
        return [
            tuple(output.text for output in translation.outputs)
            for translation in translator.stream(line_windows(*windows), first=first)
        ]

    whole = drawn(ENGLISH)
    assert drawn(ENGLISH) == whole
    assert drawn(ENGLISH, batch_tokens=1) == whole  # whatever the batch
    assert drawn(ENGLISH[:2], [], ENGLISH[2:]) == whole
    assert drawn(ENGLISH[3:], first=4) == whole[3:]
    assert drawn(ENGLISH, seed=2) != whole
    assert len(set(drawn([ENGLISH[0]] * 5))) > 1  # not all alike
    assert drawn(ENGLISH, top_k=1)[0][0] == drawn(ENGLISH, top_p=1e-9, seed=3)[0][0]


def test_an_output_begins_with_its_prefix_or_what_of_it_is_unknown_is_named(model, config, capsys):
    translator = make_translator(model, config)

    def translated(prefix):
        ((translation,),) = [list(translator.stream([[Line(ENGLISH[0], prefix)]]))]
        return translation.text, important(capsys.readouterr().err)

    lines = [Line(ENGLISH[1]), Line("", "Zwei"), Line(ENGLISH[2], "W")]
    texts = [translation.text for translation in translator.stream([lines])]
    assert texts[:2] == [translator.translate([ENGLISH[1]])[0], ""] and texts[2].startswith("W")
    capsys.readouterr()
    plain, warnings = translated("Zwei Mä")
    assert plain.startswith("Zwei Mä") and warnings == ""
    # A space at the end, one that the model does not know, and a decomposed letter.
    for prefix in ("Zwei Mä ", "Zwei Mä\u00a0", "Zwei Ma\u0308", "Zwei Ma\u0308 \u3000"):
        assert translated(prefix) == (plain, "")
    _, warnings = translated("✓ Zwei \u05d0")
    assert "line 1" in warnings and "✓, \u05d0" in warnings


def test_the_parts_of_a_line(model, config):
    """Only the first begins with the prefix, and each is drawn with random numbers of its own."""
    weights, subwords = model
    engine = Recorded(PaddleEngine([weights], subwords))
    translator = translator_with(engine, subwords, config, max_length=20)
    line = Line(" ".join([ENGLISH[0]] * 3), "Zwei")
    (translation,) = translator.stream([[line]], first=7)
    sentences = sorted((s for batch in engine.batches for s in batch), key=lambda s: s.number)
    assert len(sentences) > 2 and translation.text.startswith("Zwei")
    assert [s.prefix for s in sentences] == [subwords.target.encode("Zwei")] + [[]] * (
        len(sentences) - 1
    )
    assert len({s.number for s in sentences}) == len(sentences)


def test_word_alignments_count_the_words_of_all_parts(words, config):
    ids = words[1].target.encode("w1 w@@ w2")  # two words
    translator = translator_with(Says([ids]), words[1], config, max_length=4)
    lines = ["  w1  w@@ w3 w4\tw5 w6  w7 w8 ", "", "w1"]
    first, empty, short = translator.stream(line_windows(lines), need_alignment=True)
    assert first.outputs[0].text == "w1 ww2 w1 ww2"
    source = ["w1", "w@@ w3", "w4", "w5", "w6", "w7", "w8"]
    assert at(first.source, first.source_words) == source
    assert at(first.text, first.words) == ["w1", "ww2", "w1", "ww2"]
    # Words of the source: w1 ww3 w4 | w5 w6 w7 w8; w1 attends to the last, and w@@ w2 to the last
    # but one and the one before it.
    assert first.outputs[0].alignment == [(1, 1), (2, 0), (4, 3), (6, 2)]
    assert empty.outputs[0].alignment == []
    assert short.outputs[0].alignment == [(0, 0), (0, 1)]  # what attends to nothing, to the first


# ---- Where the words are ----


def at(text, places):
    return [text[start:end] for start, end in places]


@given(lines=st.lists(ANY_LINE, max_size=3))
@example(lines=["  Two men  ran. \t They\ud800 sat. Down\u3000there it is.  "])
@settings(max_examples=20, deadline=None)
def test_the_words_of_both_sides_have_their_places(model, config, lines):
    """Also in lines that are cut into segments, at sentences, between words, and within them."""
    for max_length in (200, 12, 3):
        translator = make_translator(model, config, max_length, n_best=2)
        for translation in translator.stream(line_windows(lines), need_alignment=True):
            source = at(translation.source, translation.source_words)
            # Spaces of all kinds around a segment are not its words.
            # A line that holds nothing visible is not translated.
            line = "" if is_blank(translation.source) else translation.source
            whole = "".join(words_between_spaces(line))
            assert "".join("".join(source).split()) == "".join(whole.split())
            if max_length == 200:
                assert source == words_between_spaces(line.strip())
            for output in translation:
                assert at(output.text, output.words) == words_between_spaces(output.text)
                for i, j in output.alignment:
                    assert i < len(source) and j < len(output.words)


# ---- Over-long lines ----


@pytest.mark.parametrize(("target_lang", "glue"), [("de", " "), ("zh", "")])
def test_an_overlong_line_is_translated_in_parts(words, config, capsys, target_lang, glue):
    tokens = [f"w{(7 * i * i + i) % 20}" for i in range(23)]
    translator = make_translator(words, config, max_length=10, target_lang=target_lang)
    lines = ["w1 w2", " ".join(tokens), "", "w3"]
    translations = translator.translate(lines)
    messages = capsys.readouterr().err
    assert messages.count("line 2: a sentence of more than 10 subwords was cut") == 1
    assert messages.count("was cut") == 1
    parts = [" ".join(tokens[start : start + 10]) for start in (0, 10, 20)]
    assert translations[1] == glue.join(translator.translate(parts))
    assert [translations[0], translations[3]] == translator.translate(["w1 w2", "w3"])
    assert "was cut" not in capsys.readouterr().err


@pytest.mark.parametrize("batch_tokens", [1, 30, 4096])
def test_progress_counts_every_line_once(words, config, batch_tokens):
    translator = make_translator(words, config, max_length=5, batch_tokens=batch_tokens)
    lines = ["w1", "", "w1 w2 w3 " * 6, " ", "w4 w5 w6 w7 w8 w9", "w2"]
    counts = []
    list(translator.stream([list(map(Line, lines))], finished=counts.append))
    assert sum(counts) == len(lines) and min(counts) >= 0


# ---- Windows: any number of lines in bounded memory ----


def test_windows_keep_the_order_and_the_line_numbers(words, config, capsys, monkeypatch):
    lines = [f"w{i} w{i + 1}" for i in range(11)]
    lines[7] = "w1 w2 w3 w4 w5 w6 w7"
    lines[9] = ""
    translator = make_translator(words, config, max_length=5)
    at_once = translator.translate(lines)
    expected = [line for line in capsys.readouterr().err.split("\n") if "was cut" in line]
    assert len(expected) == 1 and "line 8: " in expected[0]
    monkeypatch.setattr(lines_module, "WINDOW", 3)
    assert translator.translate(lines) == at_once
    found = [line for line in capsys.readouterr().err.split("\n") if "was cut" in line]
    assert found == expected


def test_at_a_pause_all_is_put_out(words, config):
    """Before more is read; whatever runs the batches, and if there are only empty lines."""

    def late(batches):  # as a pool, it keeps some back
        waiting = []
        for batch in batches:
            if batch is not None:
                waiting.append(batch(PaddleEngine([words[0]], words[1])))
            if batch is None or len(waiting) > 3:
                yield from waiting
                waiting = []
            if batch is None:
                yield None
        yield from waiting

    out = []

    def windows():
        for number, lines in enumerate([["w1"], [""], ["w2", ""], ["w3"]], 1):
            yield [Line(text) for text in lines]
            yield []
            assert len(out) == [1, 2, 4, 5][number - 1]

    translator = translator_with(late, words[1], config)
    for translation in translator.stream(windows()):
        out.append(translation.text)
    assert len(out) == 5


def test_processes_are_started_for_batches_that_come_together(monkeypatch):
    """Everything else is computed here, and its result is not held back."""
    started = []

    @contextmanager
    def pool(processes, work):
        started.append(processes)
        yield lambda batches: (batch and ("pool", work(batch)) for batch in batches)

    monkeypatch.setattr("transformer_mt.translator.process_pool", pool)
    spec = SimpleNamespace(processes=2, load=lambda: "engine")

    def batches(*names):
        return iter([name and (lambda engine, name=name: name + engine[0]) for name in names])

    with engine_processes(spec) as run:
        assert list(run(batches())) == []
        assert list(run(batches(None))) == [None]
        assert list(run(batches("a"))) == ["ae"]
        assert list(run(batches("a", None, None, "b", None))) == ["ae", None, None, "be", None]
        assert not started
        together = list(run(batches("a", None, "b", "c", None, "d")))
        assert together == ["ae", None, ("pool", "be"), ("pool", "ce"), None, ("pool", "de")]
        assert list(run(batches("a"))) == [("pool", "ae")]  # the processes are there
    assert started == [2]


# ---- Text that the model can't read ----


def test_lines_with_much_unknown_text_are_noticed(model, config, capsys):
    translator = make_translator(model, config)
    translator.translate(["A dog runs through the grass.", "Ждём A dog", "A dog runs 👍", "中文"])
    first, second = important(capsys.readouterr().err).splitlines()
    assert first.startswith("warning: line 2: ") and "not in the vocabulary" in first
    assert all(letter in first for letter in "Ждём")
    assert second.startswith("warning: line 4: 1 of 1 subwords") and "中, 文" in second


# ---- Text with BPE applied ----


def test_what_is_read_as_a_whole_is_as_long_as_the_model_was_trained_on(words, config, capsys):
    """Or MAX_AT_ONCE, if that is more."""
    long = " ".join(["a"] * (MAX_AT_ONCE + 1))
    for max_length, is_read in ((MAX_AT_ONCE, False), (MAX_AT_ONCE + 1, True)):
        translator = make_translator(words, config, max_length=max_length)
        (score,) = translator.scores([(long, "a")])
        assert math.isfinite(score) == is_read
        assert ("line 1: 1001 subwords are not scored" in capsys.readouterr().err) != is_read


def test_bpe_is_removed_from_the_output_and_missed_in_the_input(words, config, capsys):
    said = words[1].target.encode("w@@ x@@ w1 w2 w@@ w3 x@@")
    translator = translator_with(Says([said]), words[1], config)
    assert translator.translate(["w1", "Plain text, w1"]) == ["wxw1 w2 ww3 x"] * 2
    assert "warning: line 2: 2 of 3 tokens are not in the voc" in capsys.readouterr().err


# ---- Several sentences on a line, and tags and prefixes before them ----


PEOPLE = ("Ann", "Bob", "Cat", "Dog", "Eve")


class Echo:
    """An engine whose translation is the source, behind the prefix. It remembers what it was
    asked for."""

    def __init__(self):
        self.asked = []

    def search(self, sentences, settings):
        self.asked += sentences
        return [[Hypothesis(s.prefix + s.source, -1.0, -1.0)] for s in sentences]

    def cross_attention(self, sources, targets):
        return [
            np.eye(len(t), len(s), dtype=np.float32) for s, t in zip(sources, targets, strict=True)
        ]


@pytest.fixture
def echo(config):
    """A function that gives a translator that repeats what it reads, and what was read so far."""
    names = [f"{name}{mark}" for name in PEOPLE for mark in ("", ".", ",")]
    vocabulary = WordVocabulary(["<s>", "<e>", "<unk>", "<bt>", *names])

    def echo(max_length=200, source_lang="en", target_lang="de", **decoding):
        engine = Echo()
        decoding = {"split_sentences": True, "max_length_extra": 50, **decoding}
        subwords = Subwords(vocabulary, vocabulary)
        translator = translator_with(
            engine, subwords, config, max_length, target_lang, source_lang, ["<bt>"], **decoding
        )
        return translator, lambda: [vocabulary.decode(s.source) for s in engine.asked]

    return echo


def test_each_sentence_is_translated_by_itself(echo):
    translator, asked = echo()
    lines = ["Ann Bob. Cat Dog.", "Ann", "", "  Ann Bob.   Cat. "]
    assert translator.translate(lines) == ["Ann Bob. Cat Dog.", "Ann", "", "Ann Bob.   Cat."]
    assert sorted(asked()) == ["Ann", "Ann Bob.", "Ann Bob.", "Cat Dog.", "Cat."]
    translator, asked = echo(split_sentences=False)
    assert translator.translate(lines) == ["Ann Bob. Cat Dog.", "Ann", "", "Ann Bob. Cat."]
    assert sorted(asked()) == ["Ann", "Ann Bob. Cat Dog.", "Ann Bob. Cat."]


@pytest.mark.parametrize(
    ("source_lang", "target_lang", "line", "expected"),
    [
        ("en", "de", "Ann. Bob.", "Ann. Bob."),
        ("en", "zh", "Ann. Bob.", "Ann.Bob."),
        ("zh", "en", "Ann.Bob.", "Ann. Bob."),
        ("ja", "zh", "Ann. Bob.", "Ann.Bob."),
        ("en", "th", "Ann. Bob.", "Ann. Bob."),
        ("en", "de", "Ann Bob Cat. Dog", "Ann Bob Cat. Dog"),  # cut within a sentence, at 2 words
        ("en", "th", "Ann Bob Cat. Dog", "Ann BobCat. Dog"),
        ("en", "zh", "Ann Bob Cat. Dog", "Ann BobCat.Dog"),
    ],
)
def test_sentences_are_joined_as_the_target_language_is_written(
    echo, source_lang, target_lang, line, expected
):
    translator, _ = echo(2, source_lang, target_lang)
    assert translator.translate([line]) == [expected]


LONG = "Ann Bob. Cat Dog. Ann Bob. Cat"


@pytest.mark.parametrize(
    ("options", "line", "segments"),
    [
        # Without splitting, a line that is too long has whole sentences.
        ({"split_sentences": False, "max_source_length": 4}, LONG,
         ["Ann Bob. Cat", "Ann Bob. Cat Dog."]),
        ({"max_source_length": 3}, "Ann Bob, Cat Dog Eve. Ann.",
         ["Ann Bob,", "Ann.", "Cat Dog Eve."]),
    ],
)  # fmt: skip
def test_a_long_line_is_cut_between_sentences_or_behind_a_comma(
    echo, options, line, segments, capsys
):
    translator, asked = echo(**options)
    assert translator.translate([line]) == [line]
    assert sorted(asked()) == segments
    assert ("a sentence of more than 3" in capsys.readouterr().err) == ("," in line)


def test_a_tag_holds_for_every_sentence(echo):
    translator, asked = echo(max_source_length=3)
    (translation,) = translator.stream(
        line_windows(["<bt> Ann Bob. Cat Dog Eve."]), need_alignment=True
    )
    assert sorted(asked()) == ["<bt> Ann Bob.", "<bt> Cat Dog", "<bt> Eve."]
    # What comes from the tags that are not in the line belongs to no word of it.
    assert translation.source_pieces == ["<bt>", "Ann", "Bob.", "Cat", "Dog", "Eve."]
    assert at(translation.source, translation.source_words) == translation.source_pieces
    assert all(i < 6 for i, _ in translation.alignment)
    assert [translation.source[slice(*place)] for place in translation.source_parts] == [
        "<bt> Ann Bob.", "Cat Dog", "Eve."
    ]  # fmt: skip
    assert translator.translate(["<bt>", "<bt> "]) == ["<bt>", "<bt>"]  # it is text here


def test_a_prefix_begins_the_first_sentence_and_its_tags_begin_all(echo):
    def translated(line, prefix):
        (found,) = echo()[0].stream([[Line(line, prefix)]])
        return found.text

    assert translated("Ann. Bob.", "Cat Dog") == "Cat Dog Ann. Bob."
    assert translated("Ann. Bob.", "Cat. Dog") == "Cat. Ann. Dog Bob."
    assert translated("Ann.", "Cat. Dog. Eve") == "Cat. Dog. Eve Ann."
    assert translated("Ann. Bob.", "Cat. Dog. Eve") == "Cat. Ann. Dog. Eve Bob."
    assert translated("Ann. Bob.", "<bt> Cat") == "<bt> Cat Ann. <bt> Bob."
    assert translated("Ann. Bob.", "") == "Ann. Bob."


def test_the_parts_of_a_line_together_are_its_translation(echo):
    """As the page puts them together."""
    for line in ("<bt> Ann Bob. Cat Dog Eve, Ann Bob. Cat", "  Ann.  Bob", "", " ", "Ann"):
        translator, _ = echo(max_source_length=3)
        parts = translator.parts(line)
        joined = "".join(part.before + translator.translate([part.text])[0] for part in parts)
        assert joined.replace("<bt> ", "") == translator.translate([line])[0].replace("<bt> ", "")
        for part in parts:
            assert part.text.endswith(line[part.start : part.end])


# ---- The greatest length of an output ----


def test_an_output_that_has_reached_its_greatest_length_is_named_and_counted(words, config, capsys):
    ids = words[1].target.encode("w1 w1 w1 w1")
    translator = translator_with(
        Says([ids]), words[1], config, max_length_ratio=1.0, max_length_extra=2
    )
    lines = ["w1 w2 w3", "w1 w2", "", "w1"]
    assert translator.translate(lines) == ["w1 w1 w1 w1"] * 2 + ["", "w1 w1 w1 w1"]
    messages = capsys.readouterr().err
    assert "line 2: the translation has reached the limit of 4" in messages
    assert "line 1" not in messages and "line 4: the translation has reached" in messages


@pytest.mark.parametrize("nothing", [-np.inf, np.nan])
def test_a_line_without_a_translation_is_named(words, config, capsys, nothing):
    """A model whose weights are finite can still compute NaN, after an overflow."""
    translator = translator_with(Says(([], nothing)), words[1], config)
    assert translator.translate(["w1 w2", ""]) == ["", ""]
    messages = capsys.readouterr().err
    assert "line 1: what the model computes is NaN" in messages and "line 2" not in messages
