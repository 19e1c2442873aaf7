"""A model of several target languages reads a token such as >>deu<< before each sentence."""

import numpy as np
import pytest

from tests.support import demo_pairs, make_config, make_model_directory, marian_subwords, run_here
from transformer_mt.data.spans import SYMBOLS
from transformer_mt.decoding.engine import Hypothesis
from transformer_mt.decoding.line_reader import LineReader
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.decoding.output import Line

PAIRS = demo_pairs(200)
FIRST, SECOND = "The dog sleeps.", "Where is my coffee?"
SUBWORDS = marian_subwords(PAIRS)
SOURCE = SUBWORDS.source
TOKENS = SOURCE.language_tokens


def make_reader(tmp_path, subwords=SUBWORDS, symbols=(), **decoding):
    decoding = {"split_sentences": True, **decoding}
    config = make_config(tmp_path, subword={"user_symbols": [*symbols]}, decoding=decoding)
    warnings = []
    return LineReader(subwords, config, lambda message, kind: warnings.append(message)), warnings


def sources(reader, line):
    return [sentence.source for sentence in reader.read(Line(line), 1).sentences]


@pytest.mark.parametrize("space", [" ", "", "  "])
def test_each_sentence_gets_the_token_of_its_line(tmp_path, space):
    reader, warnings = make_reader(tmp_path)
    expected = [[TOKENS[">>deu<<"], *SOURCE.encode(text)] for text in (FIRST, SECOND)]
    assert sources(reader, f">>deu<<{space}{FIRST} {SECOND}") == expected
    assert not warnings


def test_a_tag_is_put_before_lines_that_have_none(tmp_path):
    reader, warnings = make_reader(tmp_path, tag=">>fra<<", max_source_length=50)
    french, german = TOKENS[">>fra<<"], TOKENS[">>deu<<"]
    both = SOURCE.encode(FIRST), SOURCE.encode(SECOND)
    assert sources(reader, f"{FIRST} {SECOND}") == [[french, *ids] for ids in both]
    assert sources(reader, f">>deu<< {FIRST} {SECOND}") == [[german, *ids] for ids in both]
    assert sources(reader, " ") == []
    assert not warnings
    # The tag counts for the length of a segment.
    short, _ = make_reader(tmp_path, tag=">>fra<<", max_source_length=4)
    for source in sources(short, FIRST):
        assert source[0] == french and len(source) <= 4


@pytest.mark.parametrize("spaces", ["", "  "])
@pytest.mark.parametrize("symbols", [[], SYMBOLS], ids=["cut at spans", "with symbols"])
def test_parts_between_spans_get_the_tag_too(tmp_path, symbols, spaces):
    """Without symbols, the line is cut where a span has characters that the model lacks."""
    reader, _ = make_reader(tmp_path, SUBWORDS.with_symbols(symbols), protect=["placeholders"])
    line = f"{spaces}>>deu<< The dog {{name}}. {SECOND} {{name}}!"
    found = sources(reader, line)
    assert len(found) > 1
    assert all(ids[0] == TOKENS[">>deu<<"] for ids in found)


def test_a_line_without_a_known_token_is_named(tmp_path):
    reader, warnings = make_reader(tmp_path)
    reader.read(Line(FIRST), 3)
    reader.read(Line(f">>eng<< {FIRST}"), 4)
    reader.read(Line(""), 5)
    assert len(warnings) == 2
    assert (
        "line 3" in warnings[0] and "it has none. Put one of >>deu<<, >>fra<< before" in warnings[0]
    )
    assert "line 4" in warnings[1] and ">>eng<< is none of them" in warnings[1]
    # A model with one target language needs none.
    reader, warnings = make_reader(tmp_path, marian_subwords(PAIRS, tokens=()))
    reader.read(Line(FIRST), 1)
    assert not warnings


class Records:
    """An engine that remembers what it reads. Its attention is to the tag, and then to words."""

    def __init__(self):
        self.sources = []

    def search(self, sentences, settings):
        self.sources += [sentence.source for sentence in sentences]
        return [[Hypothesis(SUBWORDS.target.encode("ja"), 0.0, 0.0)] for _ in sentences]

    def log_probs(self, sources, targets):
        self.sources += sources
        return [-1.0] * len(sources)

    def cross_attention(self, sources, targets):
        self.sources += sources
        return [
            np.eye(len(target), len(source), dtype=np.float32)
            for source, target in zip(sources, targets, strict=True)
        ]


def test_pairs_are_scored_and_aligned_with_the_tag(tmp_path):
    pair = "The dog", "The dog"
    counts = []
    for tag, line in ((">>deu<<", "The dog"), (None, "The dog"), (">>fra<<", ">>deu<< The dog")):
        engine = Records()
        config = make_config(tmp_path, decoding={"tag": tag})
        translator = LineTranslator(engine, SUBWORDS, config)
        list(translator.scores([(line, pair[1])]))
        (aligned,) = translator.alignments([(line, pair[1])])
        own = [TOKENS[">>deu<<"]] if tag else []
        assert engine.sources == [[*own, *SOURCE.encode(pair[0])]] * 2
        counts.append(aligned.source_words)
    assert counts == [2, 2, 3]  # a tag of the line is one of its words


def test_parts_of_a_line_have_its_own_tags_alone(tmp_path):
    config = make_config(tmp_path, decoding={"tag": ">>fra<<", "split_sentences": True})
    translator = LineTranslator(Records(), SUBWORDS, config)
    assert [part.text for part in translator.parts(f"{FIRST} {SECOND}")] == [FIRST, SECOND]
    assert [part.text for part in translator.parts(f">>deu<< {FIRST} {SECOND}")] == [
        f">>deu<< {FIRST}",
        f">>deu<< {SECOND}",
    ]


def test_the_command_has_a_flag_for_the_tag(tmp_path):
    config = make_config(tmp_path, subword={"type": "marian", "user_symbols": [*TOKENS]})
    model = make_model_directory(tmp_path / "model", PAIRS, config, subwords=SUBWORDS).path
    text = tmp_path / "text"
    text.write_text(f"{FIRST}\n{SECOND}\n")
    tagged = tmp_path / "tagged"
    tagged.write_text(f">>deu<< {FIRST}\n>>deu<< {SECOND}\n")
    command = "translate", model, "--device", "cpu", "--input"
    outputs = [tmp_path / f"output{number}" for number in range(4)]
    by_flag = run_here(*command, text, "--tag", ">>deu<<", "--output", outputs[0])
    by_lines = run_here(*command, tagged, "--output", outputs[1])
    without = run_here(*command, text, "--output", outputs[2])
    assert by_flag.returncode == by_lines.returncode == without.returncode == 0
    assert outputs[0].read_text() == outputs[1].read_text() != outputs[2].read_text()
    assert "target language" in without.stderr and "target language" not in by_flag.stderr
    refused = run_here(*command, text, "--tag", ">>eng<<", "--output", outputs[3])
    assert refused.returncode == 2 and not outputs[3].exists()
    assert "--tag: >>eng<<: the model has no such subword" in refused.stderr
    assert "its tags are >>deu<< >>fra<<" in refused.stderr
