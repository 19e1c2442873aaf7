"""Imported models against the programs that they come from, by their recorded outputs.

Logits of size 10, through at most four layers in float32, agree to 1e-4 with those of
`transformers`, and with NumPy in float64.
"""

import dataclasses
import json
import shutil

import numpy as np
import paddle
import pytest
import yaml

from tests.pretrained import golden_texts, random_models
from tests.pretrained.numpy_marian import NumpyMarian
from tests.pretrained.random_models import EOS, GOLDEN, SPECIFICATIONS
from tests.support import run_command
from transformer_mt.decoding.engine import Sentence
from transformer_mt.export import registry as engines
from transformer_mt.model.variants import build_model
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.pretrained import huggingface, marian
from transformer_mt.pretrained.sources import open_source
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.weights import read_weights, write_tensors

TOLERANCE = 1e-4
# `transformers` ends outputs of this length in another way than the search here does.
LONGEST = 38
LAYOUTS = [(name, layout) for name, spec in SPECIFICATIONS.items() for layout in spec.layouts]
IMPORTED = [pair for pair in LAYOUTS if pair[0] != "unscaled"]
HUGGING_FACE = [name for name, layout in IMPORTED if layout == "huggingface"]


def write(name, layout, folder):
    writers = {"huggingface": random_models.write_huggingface, "opus": random_models.write_opus}
    writers[layout](SPECIFICATIONS[name], folder)
    return folder


def imported(source):
    with open_source(str(source)) as opened:
        return (huggingface if opened.kind == "huggingface" else marian).read(opened)


def built(pretrained):
    model = build_model(pretrained.model, pretrained.subwords)
    parameters = dict(model.named_parameters())
    assert parameters.keys() == pretrained.weights.keys()
    for name, parameter in parameters.items():
        parameter.set_value(pretrained.weights[name])
    model.eval()
    return model


def recorded(name):
    return json.loads((GOLDEN / f"{name}.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Makes the model directory of a random model, once for all tests."""
    root = tmp_path_factory.mktemp("imported")

    def make(name, layout):
        path = root / layout / name
        if not path.exists():
            source = write(name, layout, root / "source" / layout / name)
            languages = ("--source-lang", "en", "--target-lang", "de")
            run_command("import", source, path, *languages)
        return path

    return make


@pytest.mark.parametrize("name", [name for name in HUGGING_FACE if name != "stray_output"])
def test_encoder_and_logits_are_those_of_transformers(name, tmp_path):
    pretrained = imported(write(name, "huggingface", tmp_path))
    model, golden = built(pretrained), np.load(GOLDEN / f"{name}.npz")
    source = paddle.to_tensor(golden["input_ids"].astype("int64"))
    target = golden["decoder_input_ids"].astype("int64").copy()
    target[:, 0] = pretrained.subwords.target.bos  # they start with padding
    order = np.argsort(_halves(pretrained.model.d_model))
    memory = model.encode(source).numpy()[..., order]
    tolerance = _tolerance(name, "huggingface")
    for row, mask in enumerate(golden["attention_mask"].astype(bool)):
        expected = golden["encoder_output"][row][mask]
        np.testing.assert_allclose(memory[row][mask], expected, atol=tolerance)
    logits = model(source, paddle.to_tensor(target)).numpy()
    words = golden["logits"].shape[-1] - 1  # padding gets no probability here
    np.testing.assert_allclose(logits[..., :words], golden["logits"][..., :words], atol=tolerance)


def _tolerance(name, layout):
    # The file in half precision also holds positions, which are rounded. `transformers` adds them.
    return 1e-2 if (name, layout) == ("half", "huggingface") else TOLERANCE


def _halves(d_model):
    """Which of their channels each of ours is: theirs have all sines first."""
    return np.arange(d_model).reshape(2, -1).T.reshape(-1)


@pytest.mark.parametrize(("name", "layout"), IMPORTED)
def test_logits_are_those_of_numpy(name, layout, tmp_path):
    spec = SPECIFICATIONS[name]
    if name == "stray_output":  # the matrix that is not the embedding is ignored
        spec = dataclasses.replace(spec, stray_output=False)
    pretrained = imported(write(name, layout, tmp_path))
    model = built(pretrained)
    reference = NumpyMarian(spec, "huggingface" if layout == "huggingface" else "marian")
    words, random = len(random_models.maps(spec)[1]), np.random.default_rng(1)
    source = [*random.integers(1, words, 9).tolist(), EOS]
    target = random.integers(1, words, 12).tolist()
    expected = reference.logits(reference.encode(source), target)[:, :words]
    start = pretrained.subwords.target.bos
    found = model(paddle.to_tensor([source]), paddle.to_tensor([[start, *target]])).numpy()
    np.testing.assert_allclose(found[0, :, :words], expected, atol=_tolerance(name, layout))
    assert found[0, :, words:].max() < expected.max() - 50  # neither padding nor the start


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("engine", ["paddle", "ctranslate2"])
@pytest.mark.parametrize(("name", "layout"), IMPORTED)
def test_the_translations_are_those_of_the_other_programs(
    name, layout, engine, beam_size, directory, monkeypatch
):
    """Of `transformers`, and of Marian itself, whose beams narrow and are not compared."""
    if engine == "ctranslate2" and name not in ("plain", "separate", "languages", "pre_norm"):
        pytest.skip("the export of a few is enough; test_parity has every form")
    program = "huggingface" if layout == "huggingface" else "marian"
    if engine == "ctranslate2" and beam_size > 1:
        # It ends a search earlier than `transformers` does. Its own converter takes the positions
        # of `transformers` for Marian's, and takes one vocabulary for two.
        if layout == "opus" or name == "separate":
            pytest.skip("the converter of CTranslate2 is not exact")
        program = "ctranslate2_huggingface"
    outputs = recorded(name).get(program)
    if outputs is None or (program == "marian" and beam_size > 1):
        pytest.skip("not recorded")
    if name in ("stray_output", "half") and layout == "huggingface":
        pytest.skip("`transformers` 5 computes with other numbers")
    if name == "pre_norm":
        pytest.skip("step by step, Marian computes other scores than of the whole output")
    path = directory(name, layout)
    if engine == "ctranslate2" and not (path / "export" / engine).exists():
        run_command("export", path, "--format", engine)
    # `transformers` goes on until no hypothesis can be among the four best.
    monkeypatch.setattr("transformer_mt.decoding.search.PATIENCE", 1000)
    spec = engines.find(path, engine)
    settings = {"beam_size": beam_size, "n_best": beam_size, "stop_loops": False}
    settings |= {"max_length_ratio": 0.001, "max_length_extra": LONGEST}
    spec = engines.with_decoding(spec, settings)
    source = spec.subwords.source
    sentences = [Sentence(source.encode(line)) for line in golden_texts.TRANSLATED]
    found = spec.load().search(sentences, spec.config.decoding)
    compared = 0
    for own, expected in zip(found, outputs["greedy" if beam_size == 1 else "beam"], strict=True):
        if max(len(one["ids"]) for one in expected) < LONGEST:
            assert own[0].ids == expected[0]["ids"]
            assert own[0].score == pytest.approx(expected[0]["score"], abs=TOLERANCE)
            compared += 1
    if name in ("plain", "separate", "languages"):
        assert compared


@pytest.mark.parametrize("name", [name for name, layout in IMPORTED if layout == "opus"])
def test_given_outputs_have_the_scores_of_marian(name, directory):
    """Marian prints sums of up to 30 log-probabilities with five or six digits."""
    spec = engines.find(directory(name, "opus"))
    scored = recorded(name)["marian"]["scored"]
    sources = [spec.subwords.source.encode(line) for line in golden_texts.ENGLISH[: len(scored)]]
    found = spec.load().log_probs(sources, [one["ids"] for one in scored])
    expected = [sum(one["log_probs"]) for one in scored]
    np.testing.assert_allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_text_becomes_the_ids_of_marian_tokenizer(name, directory):
    source = ModelDirectory(directory(name, "huggingface")).load_subwords().source
    found = recorded(name)
    for line, expected in zip(golden_texts.TOKENIZED, found["tokenized"], strict=True):
        # What no user means: a special subword in a text, and a code that the model has not.
        is_special = "</s>" in line or line.startswith(">>")
        if not is_special or line[:7] in source.user_symbols:
            assert [*source.encode(line), EOS] == expected, line


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_the_export_for_transformers_is_exact(name, directory, tmp_path):
    """It has the weights of the original, bit by bit, and is imported as the same model."""
    path, folder = directory(name, "huggingface"), tmp_path / "exported"
    run_command("export", path, "--format", "huggingface", "--output", folder)
    again = imported(folder)
    weights = read_weights(ModelDirectory(path).checkpoint())
    assert again.weights.keys() == weights.keys()
    for key, weight in weights.items():
        np.testing.assert_array_equal(again.weights[key], weight, err_msg=key)
    assert again.model == ModelDirectory(path).load_config().model
    subwords = ModelDirectory(path).load_subwords()
    assert again.subwords.content() == subwords.content()

    original, exported = (
        _tensors(one) for one in (random_models.huggingface_weights(SPECIFICATIONS[name]), folder)
    )
    for key, tensor in original.items():
        if key in exported and "lm_head" not in key and "bias_logits" not in key:
            rows = exported[key] if key == "final_logits_bias" else exported[key][: len(tensor)]
            rows = rows[:, : tensor.shape[1] - 1] if key == "final_logits_bias" else rows
            tensor = tensor[:, :-1] if key == "final_logits_bias" else tensor
            np.testing.assert_array_equal(rows, tensor, err_msg=key)


def _tensors(given):
    if isinstance(given, dict):
        return {name: tensor.astype("float32") for name, tensor in given.items()}
    with open_source(str(given)) as source:
        return source.tensors("model.safetensors")


def test_vocabularies_of_two_sizes(tmp_path):
    """Each side has a start of its own behind its subwords; the ids of the others are the same."""
    folder = write("separate", "huggingface", tmp_path)
    pieces = json.loads((folder / "target_vocab.json").read_text("utf-8"))
    (folder / "target_vocab.json").write_text(json.dumps({**pieces, "one more": len(pieces)}))
    tensors = _tensors(folder)
    for name in ("model.decoder.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = np.concatenate([tensors[name], tensors[name][-1:]])
    tensors["final_logits_bias"] = np.pad(tensors["final_logits_bias"], ((0, 0), (0, 1)))
    write_tensors(folder / "model.safetensors", tensors)
    found = imported(folder)
    source, target = found.subwords.source, found.subwords.target
    assert (source.bos, target.bos) == (len(pieces), len(pieces) + 1)
    assert source.size == len(pieces) + 1 and target.size == len(pieces) + 2
    assert (source.pad, source.eos, source.unk) == (target.pad, target.eos, target.unk)
    built(found)


def test_a_zip_archive_gives_the_same_model(directory, tmp_path):
    source = write("plain", "opus", tmp_path / "plain")
    archive = shutil.make_archive(str(tmp_path / "opus"), "zip", source)
    found, expected = imported(archive), imported(source)
    for name, weight in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name], weight)


class TestRefusals:
    def test_all_reasons_are_told_at_once(self, tmp_path):
        folder = write("plain", "huggingface", tmp_path)
        config = json.loads((folder / "config.json").read_text())
        changes = {"scale_embedding": False, "normalize_embedding": True, "encoder_ffn_dim": 7}
        (folder / "config.json").write_text(
            json.dumps({**config, **changes, "activation_function": "tanh"})
        )
        with pytest.raises(UserError) as error:
            imported(folder)
        for key in (*changes, "activation_function"):
            assert key in str(error.value)

    def test_shapes_that_the_config_does_not_say(self, tmp_path):
        folder = write("plain", "huggingface", tmp_path)
        config = json.loads((folder / "config.json").read_text())
        sizes = {"encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "encoder_layers": 1}
        (folder / "config.json").write_text(json.dumps({**config, **sizes}))
        with pytest.raises(UserError, match=r"fc1.weight is \[48, 32\]") as error:
            imported(folder)
        assert "\n" in str(error.value)

    def test_a_vocabulary_of_another_model(self, tmp_path):
        folder = write("plain", "huggingface", tmp_path)
        pieces = json.loads((folder / "vocab.json").read_text())
        other = {f"x{piece}" if i > 1 else piece: i for piece, i in pieces.items()}
        other = {("<pad>" if piece == "x<pad>" else piece): i for piece, i in other.items()}
        (folder / "vocab.json").write_text(json.dumps(other))
        with pytest.raises(UserError, match="not those of the vocabulary"):
            imported(folder)

    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("transformer-decoder-autoreg", "rnn"),
            ("transformer-tied-layers", [1, 1]),
            ("lemma-dim-emb", 16),
            ("type", "s2s"),
        ],
    )
    def test_options_of_marian(self, option, value, tmp_path, monkeypatch):
        config = random_models.marian_config

        def changed(spec):
            options = {**yaml.safe_load(config(spec)), option: value}
            return yaml.safe_dump(options)

        monkeypatch.setattr(random_models, "marian_config", changed)
        with pytest.raises(UserError, match=option):
            imported(write("plain", "opus", tmp_path))

    def test_nothing_is_half_made(self, tmp_path):
        folder = write("plain", "opus", tmp_path / "source")
        (folder / "target.spm").write_bytes(b"damaged")
        target = tmp_path / "made" / "model"
        languages = ("--source-lang", "en", "--target-lang", "de")
        with pytest.raises(UserError, match="no SentencePiece model"):
            run_command("import", folder, target, *languages)
        assert not target.parent.exists()
        with pytest.raises(UsageError, match="is there already"):
            run_command("import", folder, tmp_path / "source", *languages)

    def test_marian_does_not_say_the_languages(self, tmp_path):
        folder = write("plain", "opus", tmp_path / "source")
        with pytest.raises(UsageError, match="--source-lang and --target-lang"):
            run_command("import", folder, tmp_path / "model")
