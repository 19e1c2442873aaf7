"""The fast decoder takes what it computes as the model does, and leaves the rest to Paddle."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import paddle
import pytest
from paddle import nn

from tests.reference import build
from tests.support import ROOT, log_softmax
from transformer_mt.config import file as config_file
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.engine import Sentence
from transformer_mt.decoding.paddle_engine import PaddleEngine, target_arrays
from transformer_mt.kernels.cpu_decoder import CpuDecoder, cpu_decoders
from transformer_mt.model.transformer import Transformer
from transformer_mt.model.variants import CopyingTransformer, build_model

WORDS = [f"w{number}" for number in range(12)]
VOCABULARY = WordVocabulary(WORDS)
SUBWORDS = Subwords(VOCABULARY, VOCABULARY)
SMALL = {"d_model": 8, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 2}
SETTINGS = DecodingConfig(beam_size=3, n_best=3, max_length_ratio=1.0, max_length_extra=3)
TOLERANCE = 1e-4


def make_model(kind=Transformer, **options):
    """Of wide weights, so that its outputs are no ties, in which all differ from their defaults."""
    paddle.seed(1)
    options = {"pad_id": VOCABULARY.pad, "share_source_embedding": True, **options}
    model = build(kind, VOCABULARY.size, VOCABULARY.size, **{**SMALL, "dropout": 0.0, **options})
    random = np.random.default_rng(2)
    for parameter in model.parameters():
        noise = 0.4 * random.standard_normal(tuple(parameter.shape))
        parameter.set_value((parameter.numpy() + noise).astype("float32"))
    model.eval()
    return model


def own_log_prob(model, source, target):
    """What the model gives a target that it reads at once."""
    read, wanted = target_arrays([target], VOCABULARY)
    with paddle.no_grad():
        logits = model(paddle.to_tensor([[*source, VOCABULARY.eos]]), paddle.to_tensor(read))
    return np.take_along_axis(log_softmax(logits.numpy()[0]), wanted[0][:, None], axis=1).sum()


def assert_engine_is_the_model(model):
    sources = [VOCABULARY.encode(" ".join(text)) for text in (WORDS[:2], WORDS[3:8])]
    sentences = [Sentence(source, number=number) for number, source in enumerate(sources)]
    found = PaddleEngine([model], SUBWORDS).search(sentences, SETTINGS)
    for source, own in zip(sources, found, strict=True):
        assert len(own) == 3
        for hypothesis in own:
            expected = own_log_prob(model, source, hypothesis.ids)
            assert hypothesis.log_prob == pytest.approx(expected, abs=TOLERANCE)


KINDS = {
    "post": {},
    "pre": {"norm": "pre"},
    "untied": {"tie_embeddings": False},
    "dropout": {"dropout": 0.3, "attention_dropout": 0.3, "recompute": True},
    "copying": {"kind": CopyingTransformer},
    "copying, pre": {"kind": CopyingTransformer, "norm": "pre", "bias": False},
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_decodes_every_kind_that_there_is(options):
    model = make_model(**options)
    CpuDecoder(model)
    assert_engine_is_the_model(model)
    model.train()
    CpuDecoder(model)
    assert model.training


# ---- Layers that are not what they were ----


def changed(output):
    """Another output than the layer's, of the same kind. What is forbidden, and 0, stays so."""
    return (changed(output[0]), *output[1:]) if isinstance(output, tuple) else output * 1.3


def as_subclass(layer):
    kind = type(layer)
    forward = lambda self, *args, **options: changed(kind.forward(self, *args, **options))  # noqa: E731
    layer.__class__ = type(f"Other{kind.__name__}", (kind,), {"forward": forward})


def with_own_forward(layer):
    forward = layer.forward
    layer.forward = lambda *args, **options: changed(forward(*args, **options))


def with_hook(layer):
    layer.register_forward_post_hook(lambda layer, inputs, output: changed(output))


def with_hook_before(layer):
    layer.register_forward_pre_hook(
        lambda layer, inputs: (
            (changed(inputs[0]), *inputs[1:])
            if inputs and inputs[0] is not None and inputs[0].dtype == paddle.float32
            else None
        )
    )


@pytest.mark.parametrize("change", [as_subclass, with_own_forward, with_hook, with_hook_before])
def test_a_changed_layer_does_what_it_does_in_the_model(change):
    options = {"kind": CopyingTransformer, "norm": "pre", "num_decoder_layers": 1}
    names = [name for name, _ in make_model(**options).named_sublayers()]
    names = [name for name in names if not name.startswith(("encoder", "source_embedding"))]
    assert len(names) > 25
    noticed = 0
    for name in names:
        model = make_model(**options)
        change(dict(model.named_sublayers())[name])
        noticed += cpu_decoders([model]) == []
        assert_engine_is_the_model(model)
    assert noticed >= 25  # not all of these changes have an effect


# ---- Settings that are not what they were ----


def test_settings_that_are_read_are_repeated():
    model = make_model(norm="pre")
    model.target_embedding.scale = 0.7
    model.decoder.layers[0].feed_forward_residual.norm._epsilon = 1e-3
    model.decoder.layers[0].cross_attention_residual.is_pre_norm = False
    model.decoder.norm = None
    for attention in (layer.cross_attention for layer in model.decoder.layers):
        attention.num_heads, attention.d_v = 4, 2
    CpuDecoder(model)
    assert_engine_is_the_model(model)


def test_what_was_changed_in_a_model():
    model = make_model()
    step = model.decode_step
    model.decode_step = lambda *arguments: step(*arguments) * 1.1
    with pytest.raises(ValueError, match="CpuDecoder"):
        CpuDecoder(model)
    model = make_model(dropout=0.3)
    model.decoder.layers[0].feed_forward_residual.dropout.train()
    with pytest.raises(ValueError, match="CpuDecoder"):
        CpuDecoder(model)


def test_a_change_that_makes_decoding_slow_is_said_once(capsys):
    model = make_model()
    model.decoder.layers[1].feed_forward = nn.Linear(8, 8)
    assert PaddleEngine([make_model(), model], SUBWORDS)._cpu_decoders == []
    PaddleEngine([model], SUBWORDS)
    message = capsys.readouterr().err
    assert message.count("can't decode this model") == message.count("inner_projection") == 1
    model.to(dtype="float64")  # which a user has chosen
    assert PaddleEngine([make_model(), model], SUBWORDS)._cpu_decoders == []
    PaddleEngine([make_model()], SUBWORDS)
    assert capsys.readouterr().err == ""


def test_a_model_that_has_diverged_is_decoded_too():
    model = make_model()
    for weight in model.parameters():
        weight.set_value(weight * np.nan)
    assert len(cpu_decoders([model])) == 1


MODELS = [*(ROOT / "configs").glob("*.yaml"), *(ROOT / "tests/golden/models").glob("*/config.yaml")]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_is_decoded_fast(path):
    recipe = config_file.load(path)
    if recipe.model.non_autoregressive is not None:
        pytest.skip("it has no steps")
    small = {"d_model": 8, "num_heads": 2, "d_ff": 16}
    settings = recipe.model.model_copy(update=small)
    CpuDecoder(build_model(settings, SUBWORDS, recipe.training.recompute))


def test_the_encoder_may_be_anything():
    """Paddle encodes in any case."""
    model = make_model(share_source_embedding=False)
    with_own_forward(model.encoder.layers[0].feed_forward)
    as_subclass(model.source_embedding)
    CpuDecoder(model)
    assert_engine_is_the_model(model)


# ---- Workspaces, which serve for one batch after another ----


def batches(count=12):
    """Sources of one to four sentences and of one to forty words."""
    random = np.random.default_rng(3)
    for _ in range(count):
        sizes = random.integers(1, 40, random.integers(1, 5))
        yield [Sentence(random.integers(4, VOCABULARY.size, size).tolist()) for size in sizes]


def test_nothing_is_left_of_the_batch_before():
    model = make_model()
    engine = PaddleEngine([model], SUBWORDS)
    for sentences in batches():
        alone = PaddleEngine([model], SUBWORDS).search(sentences, SETTINGS)
        assert engine.search(sentences, SETTINGS) == alone


def test_threads_do_not_share_a_workspace():
    engine = PaddleEngine([make_model()], SUBWORDS)
    work = [[sentence] for batch in batches(16) for sentence in batch]
    one_by_one = [engine.search(sentences, SETTINGS) for sentences in work]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda some: engine.search(some, SETTINGS), work)) == one_by_one


# ---- The encoder of single sentences ----


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_a_single_sentence_is_encoded_as_by_the_model(options):
    model = make_model(**options)
    decoder = CpuDecoder(model)
    for sentences in batches():
        longest = [[*max((one.source for one in sentences), key=len), VOCABULARY.eos]]
        with paddle.no_grad():
            found, expected = (
                encode(paddle.to_tensor(longest)).numpy()
                for encode in (decoder.encode, model.encode)
            )
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
        assert decoder._encoder is not None


@pytest.mark.parametrize("change", [as_subclass, with_own_forward])
def test_a_changed_encoder_is_left_to_paddle(change):
    model = make_model(share_source_embedding=False)
    change(model.encoder.layers[0].feed_forward)
    assert CpuDecoder(model)._encoder is None
    assert_engine_is_the_model(model)
