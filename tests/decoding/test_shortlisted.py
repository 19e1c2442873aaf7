"""Translating with a shortlist: every search, every way to decode, and the commands."""

import shutil
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain

import numpy as np
import pytest

from tests.support import (
    as_if_trained,
    demo_pairs,
    log_softmax,
    make_config,
    make_model_directory,
    run_command,
    run_here,
    train_subwords,
    wide_model,
    write_lines,
    write_pairs,
)
from transformer_mt import Translator
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.file import dump
from transformer_mt.data.shortlist import Shortlist
from transformer_mt.decoding.engine import Sentence, length_limits
from transformer_mt.decoding.paddle_engine import PaddleEngine
from transformer_mt.export import registry
from transformer_mt.kernels import cpu_decoder
from transformer_mt.model_directory import SHORTLIST, ModelDirectory
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.folders import write_checksums

PAIRS = demo_pairs(300)
# Sums of float32 log-probabilities, as in test_paddle_engine.
TOLERANCE = 1e-4
SETTINGS = DecodingConfig(beam_size=4, n_best=3, max_length_ratio=1.0, max_length_extra=4)
SEARCHES = {
    "beam": {},
    "greedy": {"beam_size": 1, "n_best": 1},
    "wide": {"beam_size": 40},
    "sampling": {"sampling": True},
    "top_k": {"sampling": True, "top_k": 7, "temperature": 0.7},
    "top_p": {"sampling": True, "top_p": 0.8},
}


@pytest.fixture(scope="module")
def subwords():
    return train_subwords(PAIRS, 250)


@pytest.fixture(scope="module")
def models(tmp_path_factory, subwords):
    config = make_config(tmp_path_factory.mktemp("models"))
    return [wide_model(config, subwords, seed) for seed in (7, 8)]


@pytest.fixture(scope="module")
def sentences(subwords):
    """Sentences of different lengths, some with prefixes, with two segmentations each."""
    found = []
    for number, (source, target) in enumerate(PAIRS[:12]):
        ids = subwords.source.encode(source)[: 1 + number]
        prefix = subwords.target.encode(target)[: max(0, number % 4 - 1)]
        found.append(Sentence(ids, prefix, number, [subwords.source.encode(source)[::-1]]))
    return found


def narrow(subwords, seed=3):
    """Three random candidates of each source subword."""
    random = np.random.default_rng(seed)
    size = subwords.target.size
    rows = random.integers(size, size=(subwords.source.size, 3)).tolist()
    return Shortlist(subwords.target.special, rows, size)


def engine(models, subwords, shortlist, fast=True):
    made = PaddleEngine(models, subwords, shortlist=lambda: shortlist)
    if not fast:
        made._cpu_decoders = []
    return made


def texts(found):
    return [[(one.ids, one.log_prob, one.score) for one in own] for own in found]


def alone(sentences):
    return [replace(sentence, others=[]) for sentence in sentences]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("kind", ["one model", "ensemble", "segmentations"])
def test_a_shortlist_of_everything_changes_nothing(
    kind, search, models, subwords, sentences, monkeypatch
):
    everything = range(subwords.target.size)
    shortlist = Shortlist(everything, [[]] * subwords.source.size, len(everything))
    used = models if kind == "ensemble" else models[:1]
    given = sentences if kind == "segmentations" else alone(sentences)
    settings = SETTINGS.model_copy(update=SEARCHES[search])
    with_shortlist = settings.model_copy(update={"shortlist": True})
    in_panels = engine(used, subwords, shortlist).search(given, settings)
    # Only the whole output layer is kept in `Panels`, for few rows. With AVX-512, products of 2 or
    # 3 rows then add up in another order. Without panels, both are the same, bit for bit.
    monkeypatch.setattr(cpu_decoder, "PANEL", 1)
    without_panels = engine(used, subwords, shortlist)
    expected = without_panels.search(given, settings)
    assert texts(without_panels.search(given, with_shortlist)) == texts(expected)
    for its, wanted in zip(chain(*in_panels), chain(*expected), strict=True):
        assert its.ids == wanted.ids
        assert (its.log_prob, its.score) == pytest.approx((wanted.log_prob, wanted.score), rel=1e-6)


@pytest.mark.parametrize("search", SEARCHES)
def test_outputs_consist_of_candidates(search, models, subwords, sentences):
    """Of the candidates of the own sentence; and their probabilities add up to 1."""
    shortlist = narrow(subwords)
    used = engine(models[:1], subwords, shortlist)
    settings = SETTINGS.model_copy(update={**SEARCHES[search], "shortlist": True})
    given = alone(sentences)
    lengths = set()
    for sentence, own in zip(given, used.search(given, settings), strict=True):
        ids = shortlist.candidates([sentence.source], [sentence.prefix]).ids
        for one in own:
            assert set(one.ids) <= set(ids.tolist())
            assert one.ids[: len(sentence.prefix)] == sentence.prefix
            lengths.add(len(one.ids))
            expected = log_prob(used, sentence.source, one.ids, ids)
            assert one.log_prob == pytest.approx(expected, abs=TOLERANCE)
    assert len(lengths) > 3


def log_prob(used, source, output, candidates):
    """The log-probability of an output among candidates, from the model's full logits."""
    target = used._target
    decoder_input = np.array([[target.bos, *output]])
    ((_, [logits]),) = used._logits(used._source_tensor([source]), decoder_input)
    logits = logits.numpy()[0].astype(np.float64)
    masked = np.full_like(logits, -np.inf)
    masked[:, candidates] = logits[:, candidates]
    return log_softmax(masked)[np.arange(len(output) + 1), [*output, target.eos]].sum()


@pytest.mark.parametrize("kind", ["one model", "ensemble", "segmentations"])
def test_a_translation_depends_neither_on_the_batch_nor_on_the_decoder(
    kind, models, subwords, sentences
):
    shortlist = narrow(subwords)
    own_models = models if kind == "ensemble" else models[:1]
    given = sentences if kind == "segmentations" else alone(sentences)
    settings = SETTINGS.model_copy(update={"shortlist": True})
    together = engine(own_models, subwords, shortlist).search(given, settings)
    slow = engine(own_models, subwords, shortlist, fast=False).search(given, settings)
    used = engine(own_models, subwords, shortlist)
    one_by_one = [used.search([sentence], settings)[0] for sentence in given]
    for others in (slow, one_by_one):
        for own, other in zip(together, others, strict=True):
            assert [one.ids for one in own] == [one.ids for one in other]
            assert [one.log_prob for one in own] == pytest.approx(
                [one.log_prob for one in other], abs=TOLERANCE
            )
    full = used.search(given, SETTINGS)
    assert [own[0].ids for own in full] != [own[0].ids for own in together]


@pytest.mark.parametrize("search", SEARCHES)
def test_a_shortlist_without_translations_gives_empty_outputs(search, models, subwords, sentences):
    """Only eos and the prefixes are left. (pad, bos and unk never follow.)"""
    nothing = Shortlist(subwords.target.special, [[]] * subwords.source.size, subwords.target.size)
    used = engine(models[:1], subwords, nothing)
    settings = SETTINGS.model_copy(update={**SEARCHES[search], "shortlist": True})
    given = alone(sentences)
    for sentence, own in zip(given, used.search(given, settings), strict=True):
        for one in own:
            assert np.isfinite(one.log_prob)
            assert one.ids[: len(sentence.prefix)] == sentence.prefix
            assert set(one.ids) <= set(sentence.prefix)


# ---- Model directories, exports and commands ----


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A model directory whose training text is there."""
    folder = tmp_path_factory.mktemp("directory")
    write_pairs(folder / "text", "train", PAIRS)
    config = make_config(folder, subword={"vocab_size": 250}, data={"held_out": 10})
    return make_model_directory(folder / "model", PAIRS, config).path


@pytest.fixture(scope="module")
def with_shortlist(directory, tmp_path_factory):
    path = tmp_path_factory.mktemp("with") / "model"
    shutil.copytree(directory, path)
    done = run_here("shortlist", path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path / SHORTLIST}\n"
    assert "other pairs, it has" in done.stderr and "--shortlist" in done.stderr
    return path


@pytest.fixture(scope="module")
def lines():
    return [source for source, _ in PAIRS[100:130]]


def test_the_command_learns_from_the_training_text_or_from_files(with_shortlist, tmp_path):
    learnt = (with_shortlist / SHORTLIST).read_bytes()
    assert run_here("shortlist", with_shortlist).returncode == 0
    assert (with_shortlist / SHORTLIST).read_bytes() == learnt
    sides = zip(*PAIRS[:200], strict=True)
    source, target = (
        write_lines(tmp_path / name, side) for name, side in zip("st", sides, strict=True)
    )
    copy = shutil.copytree(with_shortlist, tmp_path / "model")
    done = run_here("shortlist", copy, "--source", source, "--target", target)
    assert done.returncode == 0, done.stderr
    assert (copy / SHORTLIST).read_bytes() != learnt
    run_command("translate", copy, source, tmp_path / "out", shortlist=True, threads=1)
    done = run_here("translate", copy, source, copy / SHORTLIST)
    assert done.returncode == 2 and "belongs to the model" in done.stderr


@pytest.mark.parametrize("argument", ["--source", "--target"])
def test_one_side_alone_is_refused(argument, directory):
    done = run_here("shortlist", directory, argument, "x")
    assert done.returncode == 2 and "--source and --target need each other" in done.stderr


def test_a_missing_training_text_is_named(directory, tmp_path):
    copy = shutil.copytree(directory, tmp_path / "model")
    text = directory.parent / "text"
    text.rename(text.with_name("away"))
    try:
        done = run_here("shortlist", copy)
    finally:
        text.with_name("away").rename(text)
    assert done.returncode == 2 and str(text) in done.stderr
    assert "--source and --target" in done.stderr
    assert not (copy / SHORTLIST).exists()


def test_without_a_shortlist_the_command_is_named(directory, with_shortlist, lines):
    done = run_here("translate", directory, "--shortlist")
    assert done.returncode == 2
    expected = f"{directory} has no shortlist. Make one with: python -m transformer_mt shortlist"
    assert f"error: --shortlist: true: {expected}" in done.stderr
    with pytest.raises(UsageError, match=r"decoding\.shortlist: true: .* has no shortlist"):
        Translator.load(directory).translate(lines, shortlist=True)
    translator = Translator.load(with_shortlist, shortlist=True)
    assert translator.translate(lines) == Translator.load(with_shortlist).translate(
        lines, shortlist=True
    )


def test_it_does_not_change_scores(with_shortlist, directory):
    pairs = PAIRS[:5]
    expected = list(Translator.load(directory).scores(pairs))
    assert list(Translator.load(with_shortlist, shortlist=True).scores(pairs)) == expected


def test_engines_that_cannot_refuse(with_shortlist, monkeypatch):
    spec = registry.find(with_shortlist, device="cpu")
    for other, reason in (
        (replace(spec, device="gpu:0"), "makes only a CPU faster"),
        (replace(spec, backend=registry.PADDLE_INFERENCE), "compute the whole output layer"),
    ):
        with pytest.raises(UsageError, match=f"decoding.shortlist: True: .*{reason}"):
            registry.with_decoding(other, {"shortlist": True})
    # If only the config asks for it, it is left out.
    asking = registry.with_decoding(spec, {"shortlist": True})
    warnings = []
    monkeypatch.setattr(registry, "warn", warnings.append)
    assert registry._possible(asking).config.decoding.shortlist
    assert not warnings
    left_out = registry._possible(replace(asking, device="gpu:0"))
    assert not left_out.config.decoding.shortlist
    assert "so it computes the whole output layer" in warnings[0]


def test_a_changed_shortlist_is_another_model(with_shortlist, tmp_path):
    spec = registry.with_decoding(registry.find(with_shortlist, device="cpu"), {"shortlist": True})
    before = spec.checksums()
    path = with_shortlist / SHORTLIST
    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    try:
        assert spec.checksums() != before
        with pytest.raises(UserError, match="damaged"):
            Translator.load(with_shortlist).translate(["A dog."], shortlist=True)
    finally:
        path.write_bytes(content)


def test_training_writes_the_shortlist_that_its_recipe_asks_for(tmp_path):
    for name, pairs in (("train", PAIRS[:200]), ("dev", PAIRS[200:210]), ("test", PAIRS[210:220])):
        write_pairs(tmp_path / "text", name, pairs)
    config = make_config(
        tmp_path,
        data={"dev": "dev", "test": "test"},
        training={"max_steps": 2, "average_last": 2},
        decoding={"shortlist": True},
    )
    recipe = write_lines(tmp_path / "recipe.yaml", [dump(config)])
    done = run_here("train", recipe, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    directory = ModelDirectory(tmp_path / "model")
    directory.load_shortlist(directory.load_subwords())
    assert (directory.path / "test.hypothesis").is_file()


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")
def test_an_export_holds_the_shortlist(directory, with_shortlist, lines):
    run_command("export", directory, format="ctranslate2")
    with pytest.raises(UsageError, match=r"shortlist MODEL_DIR, and export the model again"):
        Translator.load(directory / "export" / "ctranslate2", shortlist=True)
    run_command("export", with_shortlist, format="ctranslate2")
    export = with_shortlist / "export" / "ctranslate2"
    content = (with_shortlist / SHORTLIST).read_text("utf-8")
    assert content.startswith((export / "vmap.txt").read_text("utf-8"))
    assert content.count("\n") == (export / "vmap.txt").read_text("utf-8").count("\n") + 1
    translator = Translator.load(export)
    assert translator.translate(lines, shortlist=True) != translator.translate(lines)


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="CTranslate2 is not installed")
def test_ctranslate2_searches_among_the_same_candidates(subwords, tmp_path):
    """With a beam, the two stop at different times, and a model of random weights shows it."""
    from transformer_mt.export.ctranslate2 import write_model
    from transformer_mt.export.ctranslate2_engine import Ctranslate2Engine

    config = make_config(tmp_path)
    model = as_if_trained(wide_model(config, subwords), subwords, 0.3)
    shortlist = narrow(subwords)
    write_model(tmp_path, model, config, subwords)
    (tmp_path / "vmap.txt").write_text(shortlist.text(subwords), "utf-8")
    subwords.save(tmp_path)
    write_checksums(tmp_path)
    theirs = Ctranslate2Engine(tmp_path, subwords, 1)
    ours = engine([model], subwords, shortlist)
    compared, is_other = [], []
    # It has one list of candidates for all sentences of a batch, so they are given one by one.
    for number, (source, _) in enumerate(PAIRS[:100]):
        sentence = Sentence(subwords.source.encode(source), number=number)
        settings = DecodingConfig(beam_size=1, shortlist=True, stop_loops=False)
        ((own,),), ((other,),) = (used.search([sentence], settings) for used in (ours, theirs))
        if len(own.ids) == length_limits(len(sentence.source), settings)[1]:
            continue  # see Ctranslate2Engine
        assert own.ids == other.ids
        assert own.log_prob == pytest.approx(other.log_prob, abs=1e-3)
        compared.append(len(own.ids))
        full = settings.model_copy(update={"shortlist": False})
        is_other.append(ours.search([sentence], full)[0][0].ids != own.ids)
    assert len(compared) > 20 and np.mean(compared) > 2 and any(is_other)
