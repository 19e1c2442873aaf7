"""The benchmark copies weights faithfully, reads PaddleNLP's outputs right, and judges right."""

from importlib.util import find_spec

import numpy as np
import paddle
import pytest

import benchmark_decoding as benchmark
from benchmarks import paddlenlp_competitor as competitor
from tests.support import (
    ROOT,
    demo_pairs,
    log_softmax,
    make_config,
    make_model_directory,
    run_benchmark,
    write_lines,
)

SCRIPT = ROOT / "scripts" / "benchmark_decoding.py"
PAIRS = demo_pairs(60)


def sides(folder, **sections):
    """A judge of a tiny model, the text, and PaddleNLP with the weights."""
    config = make_config(folder, **sections)
    make_model_directory(folder / "model", PAIRS, config)
    judge = benchmark.Judge(folder / "model", None)
    text = judge.encode([source for source, _ in PAIRS[:8]], [target for _, target in PAIRS[:8]])
    return judge, text, competitor.PaddleNLPTranslation(*judge.export(text))


def logits(judge, source, target):
    """float32 (target_len, vocab) of one pair."""
    with paddle.no_grad():
        return judge.model(paddle.to_tensor([source]), paddle.to_tensor([target]))[0].numpy()


# ---- The weights ----

KINDS = {
    "pre-norm": {"model": {"norm": "pre", "bias": False}},
    "post-norm": {"model": {"norm": "post", "bias": True}},
    "untied": {"model": {"norm": "pre", "bias": True, "tie_embeddings": False}},
    "post-norm, untied": {"model": {"norm": "post", "bias": False, "tie_embeddings": False}},
    "two vocabularies": {
        "model": {"norm": "post", "bias": True},
        "subword": {"joint": False, "source_vocab_size": 190, "target_vocab_size": 210},
    },
    "unequal stacks": {"model": {"num_encoder_layers": 3, "num_decoder_layers": 2}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_agree(tmp_path, kind):
    _, _, paddlenlp = sides(tmp_path, **KINDS[kind])
    for search in ("v1", "v2"):
        assert paddlenlp.difference(search, 2) < benchmark.TOLERANCE


def test_every_weight_matters_to_the_logits(tmp_path):
    """A copy that were wrong in any one place would be found."""
    _, _, paddlenlp = sides(tmp_path, **KINDS["untied"])
    random = np.random.default_rng(1)
    parameters = dict(paddlenlp._model("v2", 2).named_parameters())
    for name, parameter in parameters.items():
        # The same for all keys of a query, which its softmax does not see.
        if name.endswith("k_proj.bias"):
            continue
        values = parameter.numpy()
        parameter.set_value(values + random.standard_normal(values.shape).astype(np.float32))
        assert paddlenlp.difference("v2", 2) > benchmark.TOLERANCE, name
        parameter.set_value(values)
    assert paddlenlp.difference("v2", 2) < benchmark.TOLERANCE


def test_weights_without_a_counterpart_are_named(tmp_path):
    _, _, paddlenlp = sides(tmp_path)
    arrays = dict(paddlenlp.arrays)
    model = paddlenlp._model("v1", 1)
    with pytest.raises(LookupError, match=r"encoder\.layers\.7\.linear1\.weight"):
        name = "encoder.layers.7.feed_forward.inner_projection.weight"
        competitor.copy_weights({**arrays, name: np.zeros((16, 32), np.float32)}, model)
    del arrays["decoder.norm.weight"]
    with pytest.raises(LookupError, match=r"decoder\.norm\.weight would not be"):
        competitor.copy_weights(arrays, model)


# ---- The outputs ----


@pytest.mark.parametrize("rows", [1, 3])
def test_v1_with_a_beam_of_one_is_greedy(tmp_path, rows):
    """Each id is the best after those before it: none is lost or added where outputs are cut."""
    judge, text, paddlenlp = sides(tmp_path)
    target = judge.subwords.target
    seconds, outputs, _ = paddlenlp.translate("v1", 1, rows, text.source_ids)
    assert seconds > 0 and len(outputs) == 8 and any(outputs)
    for source, ids in zip(text.source_ids, outputs, strict=True):
        best = logits(judge, [*source, target.eos], [target.bos, *ids]).argmax(axis=-1)
        assert ids == best[:-1].tolist()
        longest = max(map(len, text.source_ids)) if rows > 1 else len(source)
        assert best[-1] == target.eos or len(ids) <= longest + 1 + competitor.EXTRA_LENGTH


def test_v2_finds_better_outputs_than_greedy_search(tmp_path):
    judge, text, paddlenlp = sides(tmp_path)
    target = judge.subwords.target
    scores = {}
    for search, beam in (("v1", 1), ("v2", 4)):
        _, outputs, _ = paddlenlp.translate(search, beam, 4, text.source_ids)
        assert all(target.eos not in ids and ids[:1] != [target.bos] for ids in outputs)
        log_probs = judge.log_probs(text.source_ids, outputs)
        lengths = np.array([len(ids) + 1 for ids in outputs])
        scores[search] = np.mean(log_probs / ((5 + lengths) / 6))
    assert scores["v2"] > scores["v1"]


def test_lines_that_not_all_can_translate_are_left_out(tmp_path):
    judge, _, _ = sides(tmp_path)
    long = " ".join(source for source, _ in PAIRS) * 3
    text = judge.encode(["A man.", "", long, "Two dogs."], ["a", "b", "c", "d"])
    assert text.sources == ["A man.", "Two dogs."] and text.references == ["a", "d"]
    assert len(text.source_ids) == 2 and text.first(1).references == ["a"]


# ---- The judge ----


def test_the_judge_sums_log_probabilities_up_to_the_end(tmp_path):
    judge, text, _ = sides(tmp_path)
    source, target = judge.subwords.source, judge.subwords.target
    outputs = [target.encode(reference) for reference in text.references]
    outputs[2] = []
    found = judge.log_probs(text.source_ids, outputs)
    for own, ids, log_prob in zip(text.source_ids, outputs, found, strict=True):
        log_probs = log_softmax(logits(judge, [*own, source.eos], [target.bos, *ids]))
        expected = sum(log_probs[place, i] for place, i in enumerate([*ids, target.eos]))
        assert log_prob == pytest.approx(expected, rel=1e-5)


def test_the_judge_gives_mean_scores_bleu_and_unknown_subwords(tmp_path):
    judge, text, _ = sides(tmp_path)
    target = judge.subwords.target
    ids = [target.encode(reference) for reference in text.references]
    quality = judge.quality(text, ids, None)
    log_probs = judge.log_probs(text.source_ids, ids)
    lengths = np.array([len(row) + 1 for row in ids])
    assert quality.score == pytest.approx(np.mean(log_probs / ((5 + lengths) / 6)))
    assert quality.bleu == pytest.approx(100) and quality.unknown == 0
    ids[1] = [*ids[1], target.unk]
    outputs = ["something else"] * len(ids)
    quality = judge.quality(text, ids, outputs)
    assert quality.bleu < 1 and quality.unknown == 1
    assert quality.signature.startswith("BLEU|nrefs:1|")


# ---- The table ----


def test_ratios_are_of_the_same_round():
    turn = benchmark.TranslationTurn
    turns = {
        benchmark.V1: [turn(10, 1.0, 50), turn(10, 2.0, 50)],
        benchmark.V2: [turn(10, 2.0, 50), turn(10, 4.0, 50)],
        benchmark.OURS: [turn(10, 0.5, 60), turn(10, 0.5, 60)],
    }
    quality = {name: benchmark.Quality(-1.5, 30.0, "", 0) for name in turns}
    quality[benchmark.V1] = benchmark.Quality(-2.0, 20.0, "", 3)
    title, results, unknown = benchmark.report("Title", turns, quality)
    assert title == "### Title" and unknown == "Outputs with an unknown subword: PaddleNLP v1 3."
    v1, v2, ours = rows(results)[2:]
    assert v1[1:4] == ["7.5 (5.0–10.0)", "1", "2.00 (2.00–2.00)"]
    assert v2[2:4] == ["0.50 (0.50–0.50)", "1"]
    assert ours[2:5] == ["**3.00 (2.00–4.00)**", "**6.00 (4.00–8.00)**", "120 (120–120)"]
    assert v1[5:] == ["-2.0000", "20.00"] and ours[5:] == ["-1.5000", "30.00"]


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]


# ---- The script ----


def run(*arguments):
    return run_benchmark(SCRIPT, *arguments)


def test_wrong_arguments_are_said_without_a_traceback(tmp_path):
    model = write_lines(tmp_path / "model" / "config.yaml", []).parent
    source = write_lines(tmp_path / "source", ["a", "b"])
    reference = write_lines(tmp_path / "reference", ["a"])
    for arguments, problem in (
        ([tmp_path], f"{tmp_path / 'config.yaml'}: there is no such file\n"),
        ([model], "--source has 2 lines, --reference 1\n"),
    ):
        done = run(*arguments, "--source", source, "--reference", reference)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.endswith(problem) and "Traceback" not in done.stderr


@pytest.mark.slow
def test_it_runs_from_end_to_end(tmp_path):
    make_model_directory(tmp_path / "model", PAIRS, make_config(tmp_path))
    files = [
        write_lines(tmp_path / name, [pair[side] for pair in PAIRS[:6]])
        for side, name in enumerate(("source", "reference"))
    ]
    options = ["--rounds", 2, "--single", 2, "--beams", 2]
    done = run(tmp_path / "model", "--source", files[0], "--reference", files[1], *options)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr
    paragraphs = done.stdout.split("\n\n")
    titles = [paragraph for paragraph in paragraphs if paragraph.startswith("### ")]
    assert [title.split(",")[0] for title in titles[:2]] == ["### One thread", "### One thread"]
    assert titles[1].endswith("line by line, 2 lines") and titles[2].startswith("### Defaults")
    tables = [rows(paragraph) for paragraph in paragraphs if paragraph.startswith("|")]
    assert len(tables) == len(titles) == 3
    engines = [name for name, package, _ in benchmark.EXPORTS if find_spec(package)]
    assert engines
    names = [f"{benchmark.OURS}, {engine}" for engine in engines]
    for table, title in zip(tables, titles, strict=True):
        own = [benchmark.OURS]
        if "line by line" not in title:
            own.append(f"{benchmark.OURS}, beam 3")
        assert [row[0] for row in table[2:]] == [benchmark.V1, benchmark.V2, *own, *names]
        assert all(len(row) == len(table[0]) and all(row[1:]) for row in table[2:])
