"""The command `attention`: which sentence, which translation, which weights come to the page."""

import json
import re

import numpy as np
import pytest

from tests.support import demo_pairs, make_config, make_model_directory, run_command
from transformer_mt.decoding.output import Line
from transformer_mt.export.registry import find
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.translator import Translator
from transformer_mt.utils.errors import UsageError

PAIRS = demo_pairs(200)
TEXT, TARGET = PAIRS[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    layers = {"num_encoder_layers": 3, "num_decoder_layers": 2}
    config = make_config(folder, model=layers, data={"max_length": 60})
    return make_model_directory(folder / "model", PAIRS, config).path


@pytest.fixture
def output(tmp_path):
    return tmp_path / "page.html"


def draw(model, text, output, target=None, **flags):
    run_command("attention", model, text=text, output=output, target=target, **flags)


def data_of(page):
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*)</script>\n<script>', text)[1])


def texts(data):
    return [sentence["text"] for sentence in data["sentences"]]


def subwords(axis):
    return [text for text, _ in axis["tokens"]]


def test_the_translation_is_what_translate_finds(model, output):
    sources = [source for source, _ in PAIRS[:40]]
    greedy = Translator.load(model, beam_size=1).translate(sources)
    own = Translator.load(model).stream([list(map(Line, sources))])
    # One for which the settings of the search count.
    text, found = next(
        (one.source, one.outputs[0])
        for one, other in zip(own, greedy, strict=True)
        if one.text != other
    )
    draw(model, f" {text} ", output)
    data = data_of(output)
    assert texts(data) == [text, found.text] and data["title"] == "model, step_10"
    encoder, decoder, cross = data["maps"]
    assert subwords(cross["queries"]) == subwords(decoder["queries"]) == [*found.pieces, "</s>"]
    assert subwords(decoder["keys"]) == ["<s>", *found.pieces]
    assert subwords(cross["keys"]) == subwords(encoder["keys"]) == subwords(encoder["queries"])
    assert "".join(subwords(cross["keys"])) == "\u2581" + text.replace(" ", "\u2581") + "</s>"


def test_the_weights_are_those_of_the_translation(model, output):
    """Every map has the weights of its own attention, all layers and heads of it."""
    draw(model, TEXT, output, TARGET, checkpoint="step_5")
    data = data_of(output)
    assert texts(data) == [TEXT, TARGET] and data["title"] == "model, step_5"
    engine = find(model, "paddle").load()
    vocabulary = ModelDirectory(model).load_subwords().source  # both sides have it
    source, target = vocabulary.encode(TEXT), vocabulary.encode(TARGET)
    expected = engine.attention(source, target)
    assert subwords(data["maps"][2]["queries"]) == [*vocabulary.pieces(target), "</s>"]
    n, m = len(source) + 1, len(target) + 1
    shapes = [(3, 2, n, n), (2, 2, m, m), (2, 2, m, n)]
    for shown, weights, shape in zip(
        data["maps"], [expected.encoder, expected.decoder, expected.cross], shapes, strict=True
    ):
        assert weights.shape == shape
        # Half of the last digit that is shown.
        assert np.abs(np.array(shown["weights"]) / 1000 - weights).max() <= 0.0005 + 1e-6


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "\u202e\u2066\0\u2028\ufeff", "M\udce4rz"]
)
def test_odd_text(model, output, text):
    draw(model, f"{text} ", output, "x")
    data = data_of(output)
    # "M\udce4rz" is how Python has the argument b"M\xe4rz".
    assert texts(data) == [text.replace("\udce4", "\ufffd"), "x"]
    assert len(data["maps"][0]["weights"][0][0]) == len(subwords(data["maps"][0]["keys"]))


def test_what_is_no_text(model, output):
    """What bos and eos are called is ordinary in a text; what the model does not know is told."""
    draw(model, "<s> a \u4e2d </s>", output, "")
    encoder, decoder, _ = data_of(output)["maps"]
    kinds = [(text, kind) for text, kind in encoder["keys"]["tokens"] if kind]
    # "<", ">", the Chinese one, "</" and ">" again are not among the few characters of the model.
    assert kinds == [("<unk>", "unknown")] * 5 + [("</s>", "special")]
    assert decoder["keys"]["tokens"] == [["<s>", "special"]]
    assert decoder["queries"]["tokens"] == [["</s>", "special"]]


def test_invisible_subwords_show_as_code_points(tmp_path, output):
    pairs = [("a\u200bb \u200b c", "x\u200by")] * 20
    config = make_config(tmp_path, subword={"type": "char"})
    path = make_model_directory(tmp_path / "model", pairs, config).path
    draw(path, "a\u200bb", output)
    assert subwords(data_of(output)["maps"][0]["keys"]) == ["\u2581", "a", "U+200B", "b", "</s>"]


# ---- Refused, and nothing written ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": "  "}, "--text: there is no text in it"),
        ({"text": "one\ntwo"}, "--text: there is an end of line in it; give one line"),
        ({"text": "q" * 80}, "--text: 81 subwords, but the model reads at most 60 at once"),
        ({"text": "a", "target": "q" * 80}, "--target: 81 subwords"),
        ({"text": "a", "checkpoint": "step_7"}, "no checkpoint 'step_7'"),
        ({"text": "a", "device": "tpu"}, "--device: 'tpu'"),
    ],
)
def test_refused(model, output, arguments, message):
    with pytest.raises(UsageError, match=message):
        draw(model, output=output, **arguments)
    assert not output.exists()


@pytest.mark.parametrize(
    ("file", "engine"), [("model.bin", "ctranslate2"), ("decoder.json", "paddle_inference")]
)
def test_an_export_is_refused(tmp_path, output, file, engine):
    (tmp_path / file).touch()
    with pytest.raises(UsageError, match=f"an export for --engine {engine}"):
        draw(tmp_path, TEXT, output)
    assert not output.exists()
