"""How often decoding reads tensors on the host, and which shapes it computes, on the code path of a
GPU."""

import numpy as np
import paddle
import pytest

from tests.device_path import counted_host_reads, use_device_path
from tests.support import demo_pairs, make_config, train_subwords, wide_model
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding.engine import Sentence
from transformer_mt.decoding.paddle_engine import MixtureStepper, PaddleEngine

PAIRS = demo_pairs(60)
SETTINGS = DecodingConfig(beam_size=4, max_length_ratio=1.0, max_length_extra=5)
KINDS = {
    "beam": {},
    "greedy": {"beam_size": 1},
    "n-best": {"n_best": 4},
    "sampling": {"sampling": True, "n_best": 3},
    "top-k": {"sampling": True, "top_k": 20},
    "top-p": {"sampling": True, "top_p": 0.8},
}


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, 400)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return make_config(tmp_path_factory.mktemp("reads"))


@pytest.fixture
def steps(monkeypatch):
    """A list that grows by one for each step of a search."""
    steps = []
    step = MixtureStepper.step

    def counted(self, ids, parents):
        steps.append(ids.shape)
        return step(self, ids, parents)

    monkeypatch.setattr(MixtureStepper, "step", counted)
    return steps


@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("count", [1, 2], ids=["one model", "ensemble"])
def test_a_step_reads_one_tensor(config, subwords, monkeypatch, steps, changes, count):
    """With and without prefixes."""
    use_device_path(monkeypatch)
    models = [wide_model(config, subwords, seed) for seed in range(count)]
    prefix = subwords.target.encode(PAIRS[0][1])[:3]
    sentences = [
        Sentence(subwords.source.encode(source), prefix if number % 2 else [], number)
        for number, (source, _) in enumerate(PAIRS[:12])
    ]
    engine = PaddleEngine(models, subwords)
    assert not engine._cpu_decoders
    with counted_host_reads() as reads:
        engine.search(sentences, SETTINGS.model_copy(update=changes))
        engine.search(sentences[::2], SETTINGS.model_copy(update=changes))
    assert len(steps) > 10
    assert dict(reads) == {"numpy": len(steps)}


def test_scoring_reads_one_tensor(config, subwords, monkeypatch):
    use_device_path(monkeypatch)
    engine = PaddleEngine([wide_model(config, subwords)], subwords)
    sources = [subwords.source.encode(source) for source, _ in PAIRS[:9]]
    targets = [subwords.target.encode(target) for _, target in PAIRS[:9]]
    with counted_host_reads() as reads:
        engine.log_probs(sources, targets)
    assert dict(reads) == {"numpy": 1}


@pytest.mark.parametrize("width", [1, 4])
def test_100_steps_have_few_shapes(config, subwords, monkeypatch, width):
    """Against a pass over all hypotheses as a whole, every 20 steps."""
    model = wide_model(config, subwords)
    model.eval()
    shapes = []
    attend = type(model.decoder.layers[0].self_attention.attention).forward

    def noted(self, query, key, *rest, **options):
        shapes.append(tuple(key.shape))
        return attend(self, query, key, *rest, **options)

    monkeypatch.setattr(type(model.decoder.layers[0].self_attention.attention), "forward", noted)
    random = np.random.default_rng(3)
    source = paddle.to_tensor(random.integers(5, 300, (3, 7)))
    histories = np.zeros((3, 1, 0), np.int64)
    with paddle.no_grad():
        cache = model.start_cache(model.encode(source), source)
        shapes.clear()
        own_shapes = set()
        for step in range(100):
            # The first hypothesis always goes on, as the best ones of a search tend to.
            parents = random.integers(0, histories.shape[1], (3, width)) * random.integers(0, 2)
            ids = random.integers(5, 300, parents.shape)
            histories = np.take_along_axis(histories, parents[:, :, None], axis=1)
            histories = np.concatenate([histories, ids[:, :, None]], axis=2)
            logits = model.decode_step(paddle.to_tensor(ids), parents, cache)
            own_shapes.update(shapes)
            if step % 20 == 19:
                sources = paddle.to_tensor(np.repeat(source.numpy(), width, axis=0))
                rows = paddle.to_tensor(histories.reshape(3 * width, -1))
                whole = model.logits(rows, model.encode(sources), sources)[:, -1].numpy()
                np.testing.assert_allclose(
                    logits.numpy().reshape(whole.shape), whole, rtol=1e-4, atol=1e-3
                )
            shapes.clear()
    # One for the source; 32, 64, 128, ... for the hypotheses.
    assert len(own_shapes) <= 5, own_shapes
