"""What given translations attend to: the same from every engine, and the model's own, of the heads
that were guided by alignments."""

import numpy as np
import paddle
import pytest

from tests.reference import with_weights
from tests.support import demo_pairs, make_config, make_model_directory, run_command, write_lines
from transformer_mt.decoding.engine import Search, Sentence
from transformer_mt.decoding.line_reader import MAX_AT_ONCE
from transformer_mt.decoding.output import Line
from transformer_mt.export import registry as engines
from transformer_mt.model.variants import build_model
from transformer_mt.translator import Translator
from transformer_mt.weights import load_weights

PAIRS = demo_pairs(300)
LAYER, HEADS = 2, 2  # guided ones; others are what a model tells words by that was not guided


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A model directory with both exports in it."""
    folder = tmp_path_factory.mktemp("model")
    config = make_config(
        folder,
        model={"num_decoder_layers": 3, "num_heads": 4},
        guided_attention={"by": "alignment", "alignments": "links", "layer": 3, "heads": HEADS},
    )
    directory = make_model_directory(folder / "model", PAIRS, config)
    for format in ("paddle", "ctranslate2"):
        run_command("export", directory.path, format=format)
    return directory


def expected_attention(directory, sources, targets):
    """The mean of the heads' weights, pair by pair, without eos."""
    subwords = directory.load_subwords()
    model = build_model(directory.load_config().model, subwords)
    load_weights(directory.checkpoint(), model)
    model.eval()
    for source, target in zip(sources, targets, strict=True):
        _, weights = with_weights(
            model,
            paddle.to_tensor([[*source, subwords.source.eos]]),
            paddle.to_tensor([[subwords.target.bos, *target]]),
        )
        mean = weights.cross[LAYER].numpy()[0, :HEADS].astype("float64").mean(axis=0)
        yield mean[: len(target), : len(source)]


@pytest.mark.parametrize("name", engines.BACKENDS)
def test_each_engine_gives_the_models_own(directory, name):
    engine = engines.find(directory.path, name, device="cpu").load()
    subwords = directory.load_subwords()
    pairs = [*PAIRS[:6], (PAIRS[6][0], ""), *PAIRS[7:9]]
    sources = [subwords.source.encode(source) for source, _ in pairs]
    targets = [subwords.target.encode(target) for _, target in pairs]
    found = engine.cross_attention(sources, targets)
    expected = list(expected_attention(directory, sources, targets))
    for own, theirs in zip(found, expected, strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, theirs, atol=1e-4)
    # What is found by a search has the same.
    settings = directory.load_config().decoding
    sentences = [Sentence(source) for source in sources]
    outputs = Search(sentences, settings, need_attention=True)(engine)
    ids = [own[0].ids for own in outputs]
    for own, theirs in zip(outputs, expected_attention(directory, sources, ids), strict=True):
        np.testing.assert_allclose(own[0].attention, theirs, atol=1e-4)


# ---- Given translations, line by line ----


@pytest.mark.parametrize("name", engines.BACKENDS)
def test_given_translations_are_aligned_as_found_ones(directory, name):
    translator = Translator.load(directory.path, engine=name, device="cpu", beam_size=1)
    # Whole lines, and short ones.
    lines = [source for source, _ in PAIRS[20:50]]
    lines += [" ".join(source.split()[:2]) for source, _ in PAIRS[:120]]
    windows = translator.stream([[Line(text) for text in lines]], need_alignment=True)
    outputs = [translation.outputs[0] for translation in windows]
    counts = []
    pairs = zip(lines, (output.text for output in outputs), strict=True)
    found = list(translator.alignments(pairs, counts.append))
    assert sum(counts) == len(lines)
    same = 0
    for line, output, aligned in zip(lines, outputs, found, strict=True):
        assert aligned.source_words == len(line.split())
        assert aligned.target_words == len(output.text.split())
        assert sorted(j for _, j in aligned.links) == list(range(aligned.target_words))
        # Text may be written in other subwords than it was found in.
        encoded = directory.load_subwords().target.encode(output.text)
        if directory.load_subwords().target.pieces(encoded) == output.pieces:
            assert aligned.links == output.alignment
            same += 1
    assert same > 3


@pytest.mark.parametrize("name", engines.BACKENDS)
def test_one_line_for_one_line(directory, name, tmp_path, capfd):
    long = "und " * (MAX_AT_ONCE + 1)
    sources = [PAIRS[0][0], "", PAIRS[1][0], " ", PAIRS[2][0], "", long]
    targets = [PAIRS[0][1], "Da", "", "Da", " ", "", "Da"]
    source, target = write_lines(tmp_path / "s", sources), write_lines(tmp_path / "t", targets)
    output = tmp_path / "links"
    files = {"source": source, "target": target, "output": output}
    run_command("align", directory.path, **files, engine=name, threads=1, device="cpu")
    first, *others, end = output.read_text().split("\n")
    assert len(first.split()) == len(PAIRS[0][1].split()) and end == ""
    assert others == [""] * 6
    assert f"line 7: {len(directory.load_subwords().source.encode(long)):,}".replace(",", "") in (
        capfd.readouterr().err
    )


def test_a_language_without_spaces(tmp_path):
    config = make_config(tmp_path, data={"source_lang": "en", "target_lang": "ja"})
    directory = make_model_directory(tmp_path / "model", PAIRS, config)
    translator = Translator.load(directory.path, device="cpu")
    (aligned,) = translator.alignments([PAIRS[0]])
    pieces = directory.load_subwords().target.encode(PAIRS[0][1])
    assert aligned.target_words == len(pieces) == len(aligned.links)
    assert aligned.source_words == len(PAIRS[0][0].split())
