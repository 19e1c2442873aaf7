"""The benchmark copies weights faithfully, reads PaddleNLP's outputs right, and judges right."""

import numpy as np
import paddle
import pytest

import benchmark_decoding as benchmark
from benchmarks import paddlenlp_competitor as competitor
from tests.support import demo_pairs, log_softmax, make_config, make_model_directory

PAIRS = demo_pairs(60)


def sides(folder, **sections):
    """A judge of a tiny model, the text, and PaddleNLP with the weights."""
    make_model_directory(folder / "model", PAIRS, make_config(folder, **sections))
    judge = benchmark.Judge(folder / "model", None)
    text = judge.encode([source for source, _ in PAIRS[:8]], [target for _, target in PAIRS[:8]])
    return judge, text, competitor.PaddleNLPTranslation(*judge.export(text))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return sides(tmp_path_factory.mktemp("plain"))


def logits(judge, source, target):
    """float32 (target_len, vocab) of one pair."""
    with paddle.no_grad():
        return judge.model(paddle.to_tensor([source]), paddle.to_tensor([target]))[0].numpy()


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"norm": "pre", "bias": False}},
        {"model": {"norm": "post", "tie_embeddings": False, "num_encoder_layers": 3}},
        {"subword": {"joint": False, "source_vocab_size": 190, "target_vocab_size": 210}},
    ],
)
def test_logits_agree(tmp_path, sections):
    _, _, paddlenlp = sides(tmp_path, **sections)
    for search in ("v1", "v2"):
        assert paddlenlp.difference(search, 2) < benchmark.TOLERANCE


@pytest.mark.parametrize("rows", [1, 3])
def test_v1_with_a_beam_of_one_is_greedy(plain, rows):
    """Each id is the best after those before it: none is lost or added where outputs are cut."""
    judge, text, paddlenlp = plain
    target = judge.subwords.target
    seconds, outputs, _ = paddlenlp.translate("v1", 1, rows, text.source_ids)
    assert seconds > 0 and len(outputs) == 8 and any(outputs)
    for source, ids in zip(text.source_ids, outputs, strict=True):
        best = logits(judge, [*source, target.eos], [target.bos, *ids]).argmax(axis=-1)
        assert ids == best[:-1].tolist()
        longest = max(map(len, text.source_ids)) if rows > 1 else len(source)
        assert best[-1] == target.eos or len(ids) <= longest + 1 + competitor.EXTRA_LENGTH


def test_the_judge_sums_log_probabilities_up_to_the_end(plain):
    judge, text, _ = plain
    source, target = judge.subwords.source, judge.subwords.target
    outputs = [target.encode(reference) for reference in text.references]
    outputs[2] = []
    scores = []
    for ids, output in zip(text.source_ids, outputs, strict=True):
        log_probs = log_softmax(logits(judge, [*ids, source.eos], [target.bos, *output]))
        total = sum(log_probs[place, i] for place, i in enumerate([*output, target.eos]))
        scores.append(total / ((5 + len(output) + 1) / 6))
    assert judge.quality(text, outputs, None).score == pytest.approx(np.mean(scores), rel=1e-5)


def test_ratios_are_of_the_same_round():
    turn = benchmark.TranslationTurn
    turns = {
        benchmark.V1: [turn(10, 1.0, 50), turn(10, 2.0, 50)],
        benchmark.V2: [turn(10, 2.0, 50), turn(10, 4.0, 50)],
        benchmark.OURS: [turn(10, 0.5, 60), turn(10, 0.5, 60)],
    }
    quality = {name: benchmark.Quality(-1.5, 30.0, "", 0) for name in turns}
    _, table = benchmark.report("Title", turns, quality)
    v1, v2, ours = ([cell.strip() for cell in row.split("|")[2:]] for row in table.split("\n")[2:])
    assert v1[:3] == ["7.5 (5.0–10.0)", "1", "2.00 (2.00–2.00)"]
    assert v2[1:3] == ["0.50 (0.50–0.50)", "1"]
    assert ours[1:4] == ["**3.00 (2.00–4.00)**", "**6.00 (4.00–8.00)**", "120 (120–120)"]
    assert ours[4:6] == ["-1.5000", "30.00"]
