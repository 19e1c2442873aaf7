"""Protected spans in translations: with models that were never trained, because the spans of a line
must be in its translation whatever the model says."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import make_config, train_subwords, wide_model
from transformer_mt.data.spans import ANNOTATION, SYMBOLS, SpanFinder
from transformer_mt.data.terms import Term
from transformer_mt.decoding.engine import (
    NON_AUTOREGRESSIVE_LIMITS,
    Constraint,
    Hypothesis,
    Sentence,
)
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.decoding.output import Line
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.decoding.protection import repaired
from transformer_mt.decoding.tags import Tagger, untagged
from transformer_mt.utils.errors import UsageError

CLASSES = ["tags", "markdown", "urls", "emails", "entities", "placeholders"]
FINDER = SpanFinder(CLASSES)
# The text of the subwords has the characters of placeholders, but for the brace.
PAIRS = [
    ("A dog runs through the grass. %s costs $5", "Ein Hund läuft durch das Gras. %s kostet $5"),
    ("Two men are sitting on a bench!", "Zwei Männer sitzen auf einer Bank!"),
    ("Where is the nearest station?", "Wo ist der nächste Bahnhof?"),
    ("http://a.bc/d?e=1&f", "http://a.bc/d?e=1&f"),
]


def make_translator(tmp_path_factory, symbols, engine_of=PaddleEngine, limits=None, **decoding):
    folder = tmp_path_factory.mktemp("protection")
    subwords = train_subwords(PAIRS, 160, symbols)
    data = {"protect": CLASSES} if SYMBOLS[0] in symbols else {}
    data["annotate_terms"] = 0.5 if ANNOTATION[0] in symbols else 0.0
    decoding = {"protect": CLASSES, "max_length_extra": 0, "split_sentences": False, **decoding}
    config = make_config(folder, data=data, decoding=decoding)
    engine = engine_of([wide_model(config, subwords)], subwords)
    return LineTranslator(engine, subwords, config, warn=lambda *_: None, limits=limits)


class WithoutConstraints(PaddleEngine):
    """An engine that knows no constraints, as CTranslate2: it writes what its model says."""

    def search(self, sentences, settings):
        free = [Sentence(one.source, one.prefix, one.number, one.others) for one in sentences]
        return super().search(free, settings)


class WithoutAttention(WithoutConstraints):
    """An engine that has no attention either, as that of a non-autoregressive model."""

    def cross_attention(self, sources, targets):
        raise UsageError("this engine can't")


LIMITED = {"constraints": "this engine can't"}
TRANSLATORS = {
    "symbols": {"symbols": SYMBOLS},
    "symbols, repaired": {"symbols": SYMBOLS, "engine_of": WithoutConstraints, "limits": LIMITED},
    "symbols, repaired without attention": {
        "symbols": SYMBOLS, "engine_of": WithoutConstraints, "limits": NON_AUTOREGRESSIVE_LIMITS,
    },
    "symbols, sampled": {"symbols": SYMBOLS, "sampling": True},
    "plain": {"symbols": ()},
    "plain, cut": {"symbols": (), "engine_of": WithoutConstraints, "limits": LIMITED},
    "plain, without attention": {
        "symbols": (), "engine_of": WithoutAttention, "limits": NON_AUTOREGRESSIVE_LIMITS,
    },
    "plain, sampled": {"symbols": (), "sampling": True},
}  # fmt: skip


@pytest.fixture(scope="module", params=TRANSLATORS)
def translator(request, tmp_path_factory):
    return make_translator(tmp_path_factory, **TRANSLATORS[request.param])


def spans_of(text):
    return sorted(text[span.start : span.end] for span in FINDER.find(text))


def assert_holds(text, spans):
    """Whether the text has the spans, as often as they are given. The text around them, which no
    model has learnt to write, may look like spans too."""
    for span in sorted(spans, key=len, reverse=True):
        assert span in text
        text = text.replace(span, "\0", 1)


LINES = [
    "Where <b>is</b> the %s?",
    "%s",
    "<b><i>%s</i></b>",
    "",
    "no span here",
    "A dog <img/> runs. See http://a.bc/d?e=1&f or <a>the <i>grass</i></a>!",
    "%s%d%1$s dog",
    "<b>one dog",
    "dog</b> two",
    "{0} dogs &amp; {name}s at me@a.bc `code` [a link](http://a.bc)",
    " ".join(f"{{{i}}}" for i in range(40)),
    "dog" + "".join(f"{{{i}}}" for i in range(40)) + "dog",
    "<b>" * 20 + "x" + "</b>" * 20,
    "Two men are sitting. <b>A dog runs. Where is</b> the bench? %s",
]


def test_spans_survive(translator):
    """On every way that they may take."""
    for line, found in zip(LINES, translator.stream([list(map(Line, LINES))]), strict=True):
        for output in found.outputs:
            assert_holds(output.text, spans_of(line))
        assert (found.protected_by is None) == (not spans_of(line))


PIECES = ["<b>", "</b>", "<i>", "</i>", "{0}", "%s", "http://a.bc ", "&amp;", " dog", " runs. ",
          "\u27e60\u27e7", "<br/>", " ", "?", "中"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@settings(max_examples=25, deadline=None)
def test_symbols_are_written_once_in_any_line(translator, line):
    (found,) = translator.stream([[Line(line)]])
    assert_holds(found.text, spans_of(line))


def test_the_way_is_told(tmp_path_factory):
    def way(line, **options):
        (found,) = make_translator(tmp_path_factory, **options).stream([[Line(line)]])
        return found.protected_by

    assert way("a %s dog", **TRANSLATORS["symbols"]) == "search"
    assert way("a %s dog", **TRANSLATORS["symbols, repaired"]) == "alignment"
    assert way("a %s dog", **TRANSLATORS["plain"]) == "search"
    assert way("a <b>dog</b>", **TRANSLATORS["plain"]) == "alignment"
    assert way("a {0} dog", **TRANSLATORS["plain"]) == "cutting"  # it has no brace
    assert way("a dog", **TRANSLATORS["symbols"]) is None


def test_places_are_those_in_the_line(tmp_path_factory):
    """Of the words and parts of both sides, with spans in between."""
    for options in TRANSLATORS["symbols"], TRANSLATORS["plain"]:
        translator = make_translator(tmp_path_factory, **options)
        line = "A dog <b>runs</b> through %s the grass."
        (found,) = translator.stream([[Line(line)]], need_alignment=True)
        words = [line[start:end] for start, end in found.source_words]
        assert "dog" in words
        assert "runs" in "".join(words)
        assert [line[start:end] for start, end in found.source_parts] == [line]
        (part,) = found.outputs[0].parts
        assert found.text[part[0] : part[1]].strip() == found.text.strip()
        for start, end in found.words:
            assert 0 <= start <= end <= len(found.text)


def test_nothing_changes_without_protection(tmp_path_factory):
    """Lines without a span, and all lines if nothing is protected."""
    protected = make_translator(tmp_path_factory, ())
    free = make_translator(tmp_path_factory, (), protect=[])
    lines = ["A dog runs. Two men are sitting!", "Where is the nearest station?"]
    assert protected.translate(lines) == free.translate(lines)
    found = list(free.stream([[Line("a <b>dog</b> %s")]]))
    assert found[0].protected_by is None


# ---- Symbols that an engine has left out ----


def attention_of(rows, source_len):
    """Each output id attends to one place of the source."""
    attention = np.zeros((len(rows), source_len), np.float32)
    attention[np.arange(len(rows)), rows] = 1
    return attention


def constraint(i, after=-1):
    return Constraint(((i,),), is_symbol=True, after=after, is_once=True)


def test_missing_symbols_come_where_the_attention_is():
    # The source is `a (100 b 101) c 102`, where 100 and 101 are a pair.
    sentence = Sentence(
        [1, 100, 2, 101, 3, 102],
        constraints=(constraint(100), constraint(101, after=0), constraint(102)),
        symbol_places=(1, 3, 5),
    )

    def repair(ids, rows):
        return repaired(Hypothesis(ids, 0.0, 0.0, attention_of(rows, 6)), sentence).ids

    assert repair([11, 12, 13], [0, 2, 4]) == [11, 100, 12, 101, 13, 102]
    # With another order of words, the pair goes with its word.
    assert repair([12, 13, 11], [2, 4, 0]) == [100, 12, 101, 13, 11, 102]
    # What is there stays, and what is there too often goes.
    assert repair([11, 102, 12, 102, 13], [0, 5, 2, 5, 4]) == [11, 102, 100, 12, 101, 13]
    assert repair([101, 12, 100, 13], [3, 2, 1, 4]) == [12, 100, 101, 13, 102]
    assert repair([], []) == [100, 101, 102]


# ---- Tags by the word alignment ----


def words_of(text):
    places, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        places.append((start, start + len(word)))
        start += len(word)
    return places


def tagged(line, text, links, language="de"):
    plain = untagged(line, FINDER)
    source = plain.replaced.text
    tagger = Tagger(source, words_of(source), text, words_of(text), links, language)
    return tagger.tagged(plain.tags).original


def test_tags_enclose_the_words_that_are_linked():
    links = [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert tagged("I <b>saw a</b> dog", "Ich sah einen Hund", links) == "Ich <b>sah einen</b> Hund"
    assert tagged("<b>I saw a dog.</b>", "Ich sah einen Hund.", []) == "<b>Ich sah einen Hund.</b>"
    # Words change places, and a word of the source has become two.
    line, text = "He <b>has <i>not</i> seen</b> it.", "Er hat es nicht gesehen."
    links = [(0, 0), (1, 1), (2, 3), (3, 4), (4, 2)]
    assert tagged(line, text, links) == "Er <b>hat es <i>nicht</i> gesehen</b>."


def test_marks_around_words_stay_outside():
    assert tagged("See <a>this</a>.", "Siehe dies.", [(0, 0), (1, 1)]) == "Siehe <a>dies</a>."
    assert tagged("See <a>this.</a>", "Siehe dies.", [(0, 0), (1, 1)]) == "Siehe <a>dies.</a>"
    assert tagged('Say "<b>yes</b>" now', "Sag „ja“ nun", [(0, 0), (1, 1), (2, 2)]) == (
        "Sag „<b>ja</b>“ nun"
    )


def test_spaces_around_a_tag_that_stands_alone():
    links = [(0, 0), (1, 1), (2, 2)]
    assert tagged("Press <img/> to go", "Drücken zum Starten", links) == (
        "Drücken <img/> zum Starten"
    )
    assert tagged("Press it <img/>", "Drück es", [(0, 0), (1, 1)]) == "Drück es <img/>"
    assert tagged("<img/> Press it", "Drück es", [(0, 0), (1, 1)]) == "<img/> Drück es"
    assert tagged("Press <img/> it", "按它", [], "zh") == "按它<img/>"


def test_pairs_nest_even_if_words_are_linked_crosswise():
    line = "<b>one <i>two</i></b> <u>three</u> four"
    text = "drei zwei vier eins"
    found = tagged(line, text, [(0, 3), (1, 1), (2, 0), (3, 2)])
    spans = FINDER.find(found)
    assert spans_of(found) == spans_of(line)
    assert all(span.partner >= 0 for span in spans)
    for name in "biu":
        assert found.index(f"<{name}>") < found.index(f"</{name}>")


# ---- Terms ----


def test_terms_are_followed(tmp_path_factory):
    """In a segment each, with spans beside them, whatever the model would say."""
    lines = ["A dog runs. The dog <b>runs</b> through %s the grass.", "Where is the bench?", "dogs"]
    terms = [Term("dog", ("Männer", "zwei Männer")), Term("bench", ("Station", "Bahnhof"))]
    for options in TRANSLATORS["symbols"], TRANSLATORS["plain"]:
        free = make_translator(tmp_path_factory, **options, split_sentences=True)
        bound = free.with_settings(free._decoding, terms=terms)
        first, second, third = (found.text for found in bound.stream([list(map(Line, lines))]))
        assert first.count("Männer") >= 2
        assert "Station" in second or "Bahnhof" in second
        assert third == free.translate(lines)[2]
        assert_holds(first, spans_of(lines[0]))


def test_what_is_forbidden_is_not_written(tmp_path_factory):
    translator = make_translator(tmp_path_factory, (), beam_size=1)
    lines = ["A dog runs.", "Two men are sitting on a bench!"]
    for line, text in zip(lines, translator.translate(lines), strict=True):
        word = max(re.findall(r"\w+", text), key=len)
        terms = [Term(source, (word,), is_forbidden=True) for source in re.findall(r"\w+", line)]
        (found,) = translator.with_settings(translator._decoding, terms=terms).stream(
            [[Line(line)]]
        )
        assert word not in re.findall(r"\w+", found.text)
        assert found.text


def test_an_engine_that_cannot_follow_terms(tmp_path_factory):
    for options in TRANSLATORS["plain, cut"], TRANSLATORS["plain, sampled"]:
        translator = make_translator(tmp_path_factory, **options)
        with pytest.raises(UsageError):
            translator.with_settings(translator._decoding, terms=[Term("a", ("b",))])


class Recording(PaddleEngine):
    """Keeps what it reads."""

    def search(self, sentences, settings):
        self.read = sentences
        return super().search(sentences, settings)


ANNOTATING = {"symbols": [*SYMBOLS, *ANNOTATION], "split_sentences": True}


def reads(translator, line):
    """What the engine reads of a line, and the translation."""
    engine = translator._run.args[0]
    (found,) = translator.stream([[Line(line)]], need_alignment=True)
    sentences = sorted(engine.read, key=lambda sentence: sentence.number)
    return [translator._source.decode(one.source) for one in sentences], sentences, found


def test_a_model_reads_the_translations_of_terms(tmp_path_factory):
    """In each segment, and words and alignment are those of the line itself."""
    free = make_translator(tmp_path_factory, **ANNOTATING, engine_of=Recording)
    terms = [Term("dog", ("Hund", "Hunde")), Term("grass", ("Feld",), is_forbidden=True)]
    line = "A dog <b>runs</b>. Where is the dog %s?"
    usual, by_model, by_search = (
        free.with_settings(free._decoding.model_copy(update={"terms_by": way}), terms=terms)
        for way in (None, "annotation", "search")
    )
    plain, _, without_terms = reads(free, line)
    expected = ["A dog⟦=⟧ Hund⟦/⟧ ⟦0:⟧runs⟦:0⟧.", "Where is the dog⟦=⟧ Hund⟦/⟧ ⟦0⟧?"]
    symbols = {free._source.user_symbols[symbol] for symbol in SYMBOLS}
    for translator, is_annotated, is_bound in ((usual, 0, 1), (by_model, 1, 0), (by_search, 0, 1)):
        texts, sentences, found = reads(translator, line)
        assert texts == (expected if is_annotated else plain)
        for sentence in sentences:
            kinds = [constraint.is_symbol for constraint in sentence.constraints]
            assert kinds.count(False) == is_bound
            at_symbols = {sentence.source[place] for place in sentence.symbol_places}
            assert at_symbols and at_symbols <= symbols
        assert found.source_words == without_terms.source_words
        assert found.source_pieces == without_terms.source_pieces
        links = found.outputs[0].alignment
        assert links and all(source < len(found.source_words) for source, _ in links)
        assert_holds(found.outputs[0].text, spans_of(line))
    # What is not in the list, and what is forbidden, is not annotated.
    texts, _, _ = reads(by_model, "The grass is there.")
    assert texts == ["The grass is there."]


def test_the_ways_to_follow_terms(tmp_path_factory):
    """An engine that can't be bound follows them by what the model reads."""
    terms = [Term("dog", ("Hund",))]
    for limits in LIMITED, NON_AUTOREGRESSIVE_LIMITS:
        free = make_translator(tmp_path_factory, **ANNOTATING, limits=limits)
        with pytest.raises(UsageError):
            settings = free._decoding.model_copy(update={"terms_by": "search"})
            free.with_settings(settings, terms=terms)
        bound = free.with_settings(free._decoding, terms=terms)
        lines = ["A dog runs.", "Two men run."]
        found = [bound._prepared(Line(line), 1)[1][0].content for line in lines]
        texts = [bound._source.decode(one.source) for one in found]
        assert texts == ["A dog⟦=⟧ Hund⟦/⟧ runs.", lines[1]]
        assert not any(one.constraints for one in found)
    plain = make_translator(tmp_path_factory, SYMBOLS)
    with pytest.raises(UsageError):
        settings = plain._decoding.model_copy(update={"terms_by": "annotation"})
        plain.with_settings(settings, terms=terms)


def test_segmentations_of_annotated_text(tmp_path_factory):
    translator = make_translator(
        tmp_path_factory,
        **ANNOTATING,
        segmentations=4,
        segmentation_rate=0.3,
        terms_by="annotation",
    )
    bound = translator.with_settings(translator._decoding, terms=[Term("dog", ("Hund",))])
    (part,) = bound._prepared(Line("Where is the dog?"), 1)[1]
    texts = {bound._source.decode(ids) for ids in part.content.segmentations}
    assert texts == {"Where is the dog⟦=⟧ Hund⟦/⟧?"}
    assert len({tuple(ids) for ids in part.content.segmentations}) > 1
