"""Guided attention: its losses against NumPy in float64, what they pull at, and whole runs."""

from dataclasses import replace

import numpy as np
import paddle
import pytest

from tests.reference import with_weights
from tests.small_trainers import TRAIN, trainer_of
from tests.support import (
    make_config,
    prepared,
    take_steps,
    words,
    write_lines,
    write_pairs,
)
from transformer_mt.data import alignments
from transformer_mt.data.alignments import encoded_alignments
from transformer_mt.data.batches import collate
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary
from transformer_mt.decoding.line_translator import LineTranslator
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.training import run
from transformer_mt.training.loop import Trainer
from transformer_mt.training.objective import Objective
from transformer_mt.training.terms import guided_attention
from transformer_mt.utils.errors import UsageError, UserError

MODEL = {"num_layers": 3, "num_heads": 4}


def links(pairs):
    """Each target word, but for the first, with a word of the source, in turns."""
    return [
        " ".join(f"{(5 * j) % len(words(source))}-{j}" for j in range(1, len(words(target))))
        for source, target in pairs
    ]


@pytest.fixture
def make_trainer(tmp_path):
    def make(dev=None, **guided):
        if guided.get("by") == "alignment":
            guided["alignments"] = str(tmp_path / "links")
        return trainer_of(tmp_path, dev=dev, model=MODEL, guided_attention=guided)

    return make


def ragged(trainer):
    """A batch of pairs of very different lengths."""
    corpus = trainer.data.train
    order = np.argsort(corpus.target.lengths)
    return collate(corpus, order[[0, 60, -1, 10]], trainer.data.subwords, trainer.data.alignments)


# ---- The losses ----


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
    ids = paddle.to_tensor(batch.source), paddle.to_tensor(batch.target_input)
    weights = with_weights(trainer.model, *ids)[1].cross[layer].numpy()[:, :heads]
    own = weights.astype("float64").mean(axis=1)
    logarithms = np.log(np.maximum(weights, 1e-30))
    if guided["by"] == "alignment":
        expected = -(batch.alignment * logarithms.mean(axis=1)).sum()
    else:
        expected = 0.0
        width = guided.get("width", 0.2)
        for row in range(len(own)):
            N = int((batch.source[row] != trainer.data.subwords.source.pad).sum())
            T = int((batch.target_output[row] != trainer.data.subwords.target.pad).sum())
            n, t = np.arange(1, N + 1), np.arange(1, T + 1)[:, np.newaxis]
            W = 1 - np.exp(-((n / N - t / T) ** 2) / (2 * width**2))
            expected += T * (own[row, :T, :N] * W).mean()
    assert expected > 0.5
    assert loss - plain_loss == pytest.approx(weight * expected, rel=1e-3)
    assert nll == pytest.approx(plain_nll, rel=1e-6)
    # The dev set is measured as ever.
    assert [float(x) for x in objective.losses(batch)] == [float(x) for x in plain.losses(batch)]


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


def test_a_run_goes_on_with_the_same_alignments_only(tmp_path, capfd):
    write_pairs(tmp_path / "text", "train", TRAIN[:60])
    path = write_lines(tmp_path / "links", links(TRAIN[:60]))

    def train(steps, **guided):
        guided = {"by": "alignment", "alignments": str(path), **guided}
        training = {"max_steps": steps, "devices": 1}
        sections = {"data": {"held_out": 0}, "training": training, "guided_attention": guided}
        run.train(make_config(tmp_path, **sections), "cpu", False)

    train(2)
    for settings, problem in (
        ({"weight": 0.5}, "guided_attention.weight: 0.05, now 0.5"),
        ({"by": "diagonal", "alignments": None}, "guided_attention.by: alignment, now diagonal"),
    ):
        with pytest.raises(UsageError, match=problem):
            train(4, **settings)
    text = path.read_text()
    path.write_text(text.replace("1", "0", 1))
    with pytest.raises(UserError, match="was trained on another text or other alignments than"):
        train(4)
    # The same at another place is the same.
    path.unlink()
    path = tmp_path / "moved"
    path.write_text(text)
    capfd.readouterr()
    train(4)
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
    path = write_lines(tmp_path / "links", [alignments.write(true)] * 350)
    subwords = Subwords(*(WordVocabulary([f"{side}{i}" for i in range(20)]) for side in "st"))
    rates = {}
    for by, file in ((None, None), ("alignment", str(path))):
        config = make_config(
            tmp_path,
            model={"num_layers": 2},
            training={"max_steps": steps, "warmup_steps": 20, "learning_rate": 1e-2},
            guided_attention={"by": by, "alignments": file, "weight": 1.0},
        )
        data = prepared(config, pairs[50:], subwords)
        if by is not None:
            aligned = encoded_alignments(path, data.train, subwords, ("en", "de"), tmp_path)
            data = replace(data, alignments=aligned)
        trainer = Trainer(config, data)
        take_steps(trainer, steps)
        engine = PaddleEngine([trainer.model], subwords, config.alignment_heads)
        translator = LineTranslator(engine, subwords, config)
        found = [set(line.links) for line in translator.alignments(pairs[:50])]
        rates[by] = alignments.scores_of(found, [(set(true), set(true))] * 50).error_rate
    assert rates["alignment"] < 25 and rates[None] > 60, rates
