"""Guided attention: its losses against NumPy in float64, what they pull at, and whole runs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import pytest

from tests.support import (
    demo_pairs,
    make_config,
    prepared,
    take_steps,
    train_subwords,
    words,
    write_lines,
    write_pairs,
)
from transformer_mt.config.schema import Config
from transformer_mt.data import pharaoh
from transformer_mt.data.alignments import encoded_alignments
from transformer_mt.data.batches import collate
from transformer_mt.data.subword import Subwords, WordVocabulary
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.scoring import alignment_error_rate as error_rate
from transformer_mt.training import run
from transformer_mt.training import setup as assembly
from transformer_mt.training.objective import Objective
from transformer_mt.training.setup import prepare_for
from transformer_mt.training.terms import guided_attention
from transformer_mt.training.terms.guided_attention import GuidedAttention
from transformer_mt.training.validate import dev_loss
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = demo_pairs(120)
SUBWORDS = train_subwords(PAIRS, 300)
MODEL = {"num_layers": 3, "num_heads": 4}


def links(pairs):
    """Each target word, but for the first, with a word of the source, in turns."""
    return [
        " ".join(f"{(5 * j) % len(words(source))}-{j}" for j in range(1, len(words(target))))
        for source, target in pairs
    ]


@pytest.fixture
def make_trainer(tmp_path):
    def make(dev=None, model=MODEL, training=None, **guided):
        if guided.get("by") == "alignment":
            guided["alignments"] = str(write_lines(tmp_path / "links", links(PAIRS)))
        config = make_config(
            tmp_path, model=model, training=training or {}, guided_attention=guided
        )
        data = prepared(config, PAIRS, SUBWORDS, dev)
        if guided.get("by") == "alignment":
            aligned = encoded_alignments(
                tmp_path / "links", data.train, SUBWORDS, ("en", "de"), tmp_path
            )
            data = replace(data, alignments=aligned)
        return assembly.make_trainer(config, data)

    return make


def ragged(trainer):
    """A batch of pairs of very different lengths."""
    corpus = trainer.data.train
    order = np.argsort(corpus.target.lengths)
    return collate(corpus, order[[0, 60, -1, 10]], SUBWORDS, trainer.data.alignments)


# ---- The losses ----


def softmax(scores):
    exponents = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponents / exponents.sum(axis=-1, keepdims=True)


def attention(random, source_lengths, target_lengths, heads=3):
    """Weights as a model's: rows that sum to 1 over the source, with nothing for its padding."""
    shape = len(source_lengths), heads, max(target_lengths), max(source_lengths)
    weights = np.zeros(shape)
    for row, length in enumerate(source_lengths):
        weights[row, :, :, :length] = softmax(3 * random.standard_normal((*shape[1:3], length)))
    return weights


def test_the_diagonal_loss_is_the_papers():
    """The mean of A_nt W_nt over a sentence, for each target token of it, written as a loop."""
    random = np.random.default_rng(1)
    source_lengths, target_lengths, width = np.array([5, 1, 9, 2]), np.array([3, 7, 1, 2]), 0.2
    weights = attention(random, source_lengths, target_lengths)
    expected = 0.0
    for row, (N, T) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        for head in range(3):
            products = [
                weights[row, head, t - 1, n - 1]
                * (1 - np.exp(-((n / N - t / T) ** 2) / (2 * width**2)))
                for n in range(1, N + 1)
                for t in range(1, T + 1)
            ]
            expected += T * np.mean(products) / 3
    penalty = guided_attention.diagonal_penalty(source_lengths, target_lengths, width, (7, 9))
    found = guided_attention.diagonal_loss(
        paddle.to_tensor(weights.astype("float32")), paddle.to_tensor(penalty)
    )
    # Some hundred float32 terms of at most 1.
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert expected > 0.1


def test_on_the_diagonal_nothing_is_lost():
    length = np.array([6])
    penalty = guided_attention.diagonal_penalty(length, length, 0.2, (6, 6))[0]
    np.testing.assert_allclose(np.diag(penalty), 0, atol=1e-7)
    # Far from it, nearly the whole weight, of which the mean over the source is taken.
    assert penalty[0, 5] == pytest.approx(1 / 6, rel=1e-3)
    wide = guided_attention.diagonal_penalty(length, length, 0.8, (6, 6))[0]
    assert wide[0, 5] < penalty[0, 5]


def test_the_alignment_loss_is_the_papers():
    """The cross-entropy of each linked target token against equal shares of its links."""
    random = np.random.default_rng(2)
    source_lengths, target_lengths = np.array([5, 1, 9]), np.array([3, 7, 2])
    weights = attention(random, source_lengths, target_lengths)
    alignment = np.zeros((3, 7, 9))
    expected = 0.0
    for row, (N, T) in enumerate(zip(source_lengths, target_lengths, strict=True)):
        for t in range(T):
            linked = np.flatnonzero(random.random(N) < 0.4)
            for n in linked:
                alignment[row, t, n] = 1 / len(linked)
                expected -= np.log(weights[row, :, t, n]).mean() / len(linked)
    assert 0 < (alignment.sum(axis=2) == 0).sum() < alignment.shape[0] * 7
    found = guided_attention.alignment_loss(
        paddle.to_tensor(weights.astype("float32")), paddle.to_tensor(alignment.astype("float32"))
    )
    assert float(found) == pytest.approx(expected, rel=1e-5)
    assert expected > 1


def test_a_weight_of_nothing_is_no_infinite_loss():
    weights = paddle.to_tensor([[[[1.0, 0.0]]]], stop_gradient=False)
    loss = guided_attention.alignment_loss(weights, paddle.to_tensor([[[0.0, 1.0]]]))
    loss.backward()
    assert np.isfinite(float(loss)) and float(loss) > 60
    assert np.isfinite(weights.grad.numpy()).all()


# ---- The objective ----


@pytest.mark.parametrize(
    ("guided", "layer", "heads", "weight"),
    [
        ({"by": "diagonal"}, 1, 1, 1.0),
        ({"by": "diagonal", "layer": 3, "heads": 4, "weight": 0.3, "width": 0.5}, 2, 4, 0.3),
        ({"by": "alignment"}, 1, 1, 0.05),
        ({"by": "alignment", "layer": 1, "heads": 2, "weight": 2.0}, 0, 2, 2.0),
    ],
)
def test_the_loss_of_a_batch(make_trainer, guided, layer, heads, weight):
    """That of translating, and the weighted one of the chosen heads, of the model's own weights."""
    trainer = make_trainer(**guided)
    objective, batch = trainer.updater.objective, ragged(trainer)
    trainer.model.eval()
    plain = Objective(trainer.model, objective.criterion)
    plain_loss, plain_nll = map(float, plain.losses(batch, 1))
    loss, nll = map(float, objective.losses(batch, 1))
    _, attention_weights = trainer.model(
        paddle.to_tensor(batch.source), paddle.to_tensor(batch.target_input), need_weights=True
    )
    own = attention_weights.cross[layer].numpy().astype("float64")[:, :heads].mean(axis=1)
    logarithms = np.log(np.maximum(attention_weights.cross[layer].numpy()[:, :heads], 1e-30))
    if guided["by"] == "alignment":
        expected = -(batch.alignment * logarithms.mean(axis=1)).sum()
    else:
        expected = 0.0
        width = guided.get("width", 0.2)
        for row in range(len(own)):
            N = int((batch.source[row] != SUBWORDS.source.pad).sum())
            T = int((batch.target_output[row] != SUBWORDS.target.pad).sum())
            n, t = np.arange(1, N + 1), np.arange(1, T + 1)[:, np.newaxis]
            W = 1 - np.exp(-((n / N - t / T) ** 2) / (2 * width**2))
            expected += T * (own[row, :T, :N] * W).mean()
    assert expected > 0.5
    assert loss - plain_loss == pytest.approx(weight * expected, rel=1e-3)
    assert nll == pytest.approx(plain_nll, rel=1e-6)
    # The dev set is measured as ever.
    assert [float(x) for x in objective.losses(batch)] == [float(x) for x in plain.losses(batch)]


def test_the_dev_set_is_measured_without_it(make_trainer):
    dev = demo_pairs(130)[120:]
    guided = make_trainer(dev, by="diagonal", heads=2)
    plain = make_trainer(dev)
    assert [type(term) for term in guided.updater.objective.terms] == [GuidedAttention]
    assert type(plain.updater.objective) is Objective and not plain.updater.objective.terms
    losses = [dev_loss(t.config, t.data, t.updater) for t in (guided, plain)]
    assert losses[0] == losses[1]  # the same seed, the same weights


@pytest.mark.parametrize("by", ["diagonal", "alignment"])
def test_it_pulls_at_the_guided_heads_alone(make_trainer, by):
    """And at what is below them: not at other heads of the layer, at what the heads read out, or
    at layers above."""
    trainer = make_trainer(by=by, layer=2, heads=1)
    objective, batch, model = trainer.updater.objective, ragged(trainer), trainer.model
    model.eval()
    source = paddle.to_tensor(batch.source)
    _, cross_weights = model.logits(
        paddle.to_tensor(batch.target_input), model.encode(source), source, need_weights=True
    )
    objective.terms[0].attention_loss(cross_weights[1][:, :1], batch).backward()

    def is_pulled(layer, name):
        gradient = dict(layer.named_parameters())[name].grad
        return gradient is not None and bool((gradient != 0).any())

    first, guided, last = model.decoder.layers
    for name in ("query_projection", "key_projection"):
        gradient = getattr(guided.cross_attention, name).weight.grad.numpy()
        width = guided.cross_attention.d_k
        assert (gradient[:, :width] != 0).any(), name
        assert not gradient[:, width:].any(), name
    for name in ("value_projection.weight", "output_projection.weight"):
        assert not is_pulled(guided.cross_attention, name)
    assert not is_pulled(guided, "feed_forward.inner_projection.weight")
    assert not any(is_pulled(last, name) for name, _ in last.named_parameters())
    assert is_pulled(first, "cross_attention.value_projection.weight")
    assert is_pulled(model.encoder, "layers.0.self_attention.query_projection.weight")


# ---- Whole runs ----


@pytest.fixture
def recipe(tmp_path):
    """Text with a pair that is left out, and links of it; a config of the two."""
    pairs = [*PAIRS[:50], ("", "leer"), *PAIRS[50:100]]
    write_pairs(tmp_path / "text", "train", pairs)
    write_pairs(tmp_path / "text", "dev", PAIRS[100:110])
    path = write_lines(tmp_path / "links", [*links(PAIRS[:50]), "", *links(PAIRS[50:100])])
    config = make_config(
        tmp_path,
        data={"dev": "dev", "held_out": 0},
        training={"max_steps": 2, "devices": 1},
        guided_attention={"by": "alignment", "alignments": str(path)},
    )
    return config, path


def changed(config, **sections):
    values = config.model_dump()
    for section, keys in sections.items():
        values[section] |= keys
    return Config.model_validate(values)


def test_the_pairs_that_are_kept_have_their_own_links(recipe):
    config, path = recipe
    _, data = prepare_for(config)
    assert data.train.lines.tolist() == [*range(50), *range(51, 101)]
    batch = collate(data.train, np.array([49, 50]), data.subwords, data.alignments)
    alone = prepare_for(changed(config, data={"drop_duplicates": True}))[1].alignments
    np.testing.assert_array_equal(
        alone.matrix(np.array([49, 50]), *batch.alignment.shape[1:]), batch.alignment
    )
    count = sum(len(line.split()) for line in path.read_text().split("\n"))
    (report,) = [line for line in data.report() if line.startswith("alignments")]
    assert re.fullmatch(
        rf"alignments      101 lines, {count:,} links of words; \d+\.\d% of the target subwords "
        "have none",
        report,
    )
    plain = changed(config, guided_attention={"by": None, "alignments": None})
    assert prepare_for(plain)[1].alignments is None
    assert not any("alignments" in line for line in prepare_for(plain)[1].report())


def test_a_run_goes_on_with_the_same_alignments_only(recipe, capfd):
    config, path = recipe
    run.train(config, "cpu", False)
    log = Path(config.model_dir) / "metrics.jsonl"
    (dev,) = [
        line for line in map(json.loads, log.read_text().splitlines()) if line["kind"] == "dev"
    ]
    assert dev["step"] == 2

    longer = changed(config, training={"max_steps": 4})
    for settings, problem in (
        ({"weight": 0.5}, "guided_attention.weight: 0.05, now 0.5"),
        ({"by": "diagonal", "alignments": None}, "guided_attention.by: alignment, now diagonal"),
    ):
        with pytest.raises(UsageError, match=problem):
            run.train(changed(longer, guided_attention=settings), "cpu", False)
    text = path.read_text()
    path.write_text(text.replace("1", "0", 1))
    with pytest.raises(UserError, match="was trained on another text or other alignments than"):
        run.train(longer, "cpu", False)
    # The same at another place is the same.
    path.unlink()
    moved = path.with_name("moved")
    moved.write_text(text)
    capfd.readouterr()
    run.train(changed(longer, guided_attention={"alignments": str(moved)}), "cpu", False)
    assert "going on from" in capfd.readouterr().err


def test_a_guided_model_aligns_words_as_it_was_told(tmp_path):
    """A language in which each word has one of another for it, and all stand in reverse: what the
    heads know of that after some steps, with the same seed."""
    steps, length = 60, 6
    rows = np.random.default_rng(1).integers(0, 20, (400, length)).tolist()
    pairs = [
        (" ".join(f"s{i}" for i in row), " ".join(f"t{i}" for i in reversed(row))) for row in rows
    ]
    true = [(i, length - 1 - i) for i in range(length)]
    path = write_lines(tmp_path / "links", [pharaoh.write(true)] * 350)
    subwords = Subwords(*(WordVocabulary([f"{side}{i}" for i in range(20)]) for side in "st"))
    rates = {}
    for by, alignments in ((None, None), ("alignment", str(path))):
        config = make_config(
            tmp_path,
            model={"num_layers": 2},
            training={"max_steps": steps, "warmup_steps": 20, "learning_rate": 1e-2},
            guided_attention={"by": by, "alignments": alignments, "weight": 1.0},
        )
        data = prepared(config, pairs[50:], subwords)
        if by is not None:
            aligned = encoded_alignments(path, data.train, subwords, ("en", "de"), tmp_path)
            data = replace(data, alignments=aligned)
        trainer = assembly.make_trainer(config, data)
        take_steps(trainer, steps)
        engine = PaddleEngine([trainer.model], subwords, config.alignment_heads)
        translator = LineTranslator(engine, subwords, config.decoding, 100, "de", "en")
        found = [set(line.links) for line in translator.alignments(pairs[:50])]
        rates[by] = error_rate.score(found, [(set(true), set(true))] * 50).error_rate
    assert rates["alignment"] < 25 and rates[None] > 60, rates
