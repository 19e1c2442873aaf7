"""Losses are computed in float32 where the model computes in half precision.

Paddle casts nothing on a CPU, whatever auto_cast is told. So what a GPU would give is cast by hand
here, and whether auto_cast would have been allowed to cast is noted where it must not be.
"""

import contextlib

import numpy as np
import paddle
import pytest

from tests.small_trainers import trainer_of
from tests.support import wide_model
from transformer_mt.data.batches import collate
from transformer_mt.model import variants
from transformer_mt.training.terms import make_objective

OPTIONS = {
    "guided_attention, diagonal": {"guided_attention": {"by": "diagonal"}},
    "guided_attention, alignment": {
        "guided_attention": {"by": "alignment", "alignments": "links", "weight": 1.0}
    },
    "copying": {"model": {"copying": True}},
    "non_autoregressive": {"model": {"non_autoregressive": "length"}},
}


@pytest.fixture
def allowed(monkeypatch):
    """Whether auto_cast may cast: the last is what holds now."""
    stack = [False]

    @contextlib.contextmanager
    def auto_cast(enable=True, **_):
        stack.append(enable)
        try:
            yield
        finally:
            stack.pop()

    monkeypatch.setattr(paddle.amp, "auto_cast", auto_cast)
    return stack


def half(x):
    return x.astype("bfloat16")


def halved(monkeypatch, owner, name, which):
    """Casts what a method gives, a tuple: those numbered `which`, tensors or lists of them."""
    plain = getattr(owner, name)

    def call(*arguments, **options):
        given = list(plain(*arguments, **options))
        for i in which:
            is_list = isinstance(given[i], list)
            given[i] = [half(x) for x in given[i]] if is_list else half(given[i])
        return tuple(given)

    monkeypatch.setattr(owner, name, call)


def watched(monkeypatch, allowed, owner, name):
    """A list of (whether casting was allowed, whether all floating arguments were float32)."""
    plain, seen = getattr(owner, name), []

    def call(*arguments, **options):
        tensors = [one for one in arguments if isinstance(one, paddle.Tensor)]
        are_float32 = {one.dtype for one in tensors if one.is_floating_point()} <= {paddle.float32}
        seen.append((allowed[-1], are_float32))
        return plain(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return seen


@pytest.mark.parametrize("option", OPTIONS)
def test_the_loss_is_in_float32(tmp_path, monkeypatch, allowed, option):
    """And within 1 % of that of a model in float32; bfloat16 has 8 bits, which is 0.4 %."""
    trainer = trainer_of(tmp_path, **OPTIONS[option])
    config, data, subwords = trainer.config, trainer.data, trainer.data.subwords
    batch = collate(data.train, np.arange(20), subwords, data.alignments)
    model = wide_model(config, subwords)
    objective = make_objective(config, model, subwords)

    def loss():
        np.random.seed(1)  # of masks
        return objective.losses(batch, 1)[0]

    expected = float(loss())
    seen = []
    if option.startswith("guided_attention"):
        seen.append(watched(monkeypatch, allowed, objective.terms[0], "attention_loss"))
        halved(monkeypatch, model, "logits", (0, 1))
    elif option == "copying":
        # The first two are what `_mixed` calls, the third what the mixture is.
        seen.append(watched(monkeypatch, allowed, variants.CopyableSource, "pointed_at"))
        seen.append(watched(monkeypatch, allowed, variants._Mixture, "apply"))
        halved(monkeypatch, model, "decode", (2,))
        for layer in (model.generator, model.gate):
            layer.register_forward_post_hook(lambda layer, inputs, output: half(output))
    else:
        seen.append(watched(monkeypatch, allowed, paddle.nn.functional, "cross_entropy"))
        halved(monkeypatch, model, "encode_with_lengths", (1,))
    with paddle.amp.auto_cast(dtype="bfloat16", level="O1"):
        found = loss()
        assert allowed[-1]
    assert found.dtype == paddle.float32
    assert float(found) == pytest.approx(expected, rel=0.01)
    for calls in seen:
        assert calls and not any(is_allowed for is_allowed, _ in calls)
    # What points at the source casts its weights itself.
    assert all(are_float32 for _, are_float32 in seen[-1])
