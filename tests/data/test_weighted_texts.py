"""Training texts with weights and tags, and texts that are reversed."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_corpus import write, write_pairs
from tests.support import demo_pairs, make_config, train_subwords
from transformer_mt.config import file as config_file
from transformer_mt.data.batches import WeightedText, epoch_batches, epoch_sentences
from transformer_mt.data.prepare import prepare
from transformer_mt.training.progress import Plan
from transformer_mt.utils.errors import UsageError

PAIRS = demo_pairs(300)
NEWS, WEB, OTHER = PAIRS[:120], PAIRS[120:220], PAIRS[220:]

weighted = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.sampled_from([1.0, 2.0, 3.0, 0.5, 0.1, 1.5, 2.25, 0.999, 1 / 3]) | st.floats(0.01, 4),
    ),
    min_size=1,
    max_size=5,
)


# ---- How often each sentence is read ----


@given(texts=weighted, seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_counts(texts, seed, epoch):
    """Each sentence is read as often as its weight, rounded up or down, and the texts' totals are
    exact."""
    total = sum(pairs for pairs, _ in texts)
    lengths = np.random.default_rng(seed).integers(1, 30, total)
    own = [WeightedText(*text) for text in texts]
    batches = epoch_batches(lengths, lengths, 60, seed, epoch, texts=own)
    counts = Counter(int(number) for batch in batches for number in batch)
    first = 0
    for pairs, weight in texts:
        read = [counts[number] for number in range(first, first + pairs)]
        whole = int(Fraction(weight))
        assert sum(read) == whole * pairs + round((weight - whole) * pairs)
        assert set(read) <= {whole, whole + 1}
        first += pairs
    assert set(counts) <= set(range(total))
    for batch in batches:
        assert len(batch) * (lengths[batch].max() + 1) <= 60 or len(batch) == 1


def test_weights_of_one_are_no_weights():
    lengths = np.random.default_rng(1).integers(1, 30, 100)
    texts = [WeightedText(count, 1.0) for count in (30, 0, 70)]
    plain, same = (epoch_batches(lengths, lengths, 60, 1, 2, texts=used) for used in ((), texts))
    assert [batch.tolist() for batch in same] == [batch.tolist() for batch in plain]


def test_every_epoch_draws_anew_and_every_pair_equally_often():
    texts = [WeightedText(10, 1.0), WeightedText(40, 0.25), WeightedText(20, 1.5)]
    epochs = [epoch_sentences(texts, 3, epoch).tolist() for epoch in range(800)]
    assert {len(numbers) for numbers in epochs} == {10 + 10 + 30}
    assert len({tuple(sorted(numbers)) for numbers in epochs}) == 800
    counts = np.bincount(np.concatenate(epochs))
    # The standard deviation of a binomial distribution is at most 14 here.
    assert (counts[:10] == 800).all()
    assert (abs(counts[10:50] - 200) < 70).all() and (abs(counts[50:] - 1200) < 70).all()
    assert epoch_sentences(texts, 4, 0).tolist() != epochs[0]


# ---- From the files to the batches ----


@pytest.fixture
def folder(tmp_path):
    write_pairs(tmp_path, "news", [*NEWS[:50], ("", "leer"), *NEWS[50:], ("a", "b " * 90)])
    write(tmp_path / "web.tsv", ["\t".join(pair) for pair in [("", ""), *WEB]])
    write_pairs(tmp_path, "other", [(" ", "x"), *OTHER, OTHER[0]])
    return tmp_path


TEXTS = [
    "news",
    {"text": "web.tsv", "weight": 0.5, "tag": "<web>"},
    {"text": "other", "weight": 2, "tag": "<bt>", "reverse": True},
]


def config_of(folder: Path, train, **sections):
    data = {"root": str(folder), "train": train, "held_out": 0, **sections.pop("data", {})}
    subword = {"vocab_size": 120, "user_symbols": ["<bt>", "<web>"], **sections.pop("subword", {})}
    return make_config(folder, data=data, subword=subword, **sections)


def as_text(data) -> list[tuple[str, str]]:
    subwords, train = data.subwords, data.train
    return [
        (subwords.source.decode(train.source[i]), subwords.target.decode(train.target[i]))
        for i in range(len(train))
    ]


def test_tags_and_reversed_texts(folder):
    """A blank side is dropped although the text has a tag."""
    data = prepare(config_of(folder, TEXTS))
    tagged = [(f"<web> {source}", target) for source, target in WEB]
    reversed_pairs = [(f"<bt> {target}", source) for source, target in [*OTHER, OTHER[0]]]
    assert as_text(data) == NEWS + tagged + reversed_pairs
    dropped = {reason: facts["count"] for reason, facts in data.facts["dropped"].items()}
    assert dropped == {"empty on a side": 3, "lengths differ by more than 6 to 1": 1}
    # The three texts, without the pairs that are dropped.
    assert data.texts == (WeightedText(120, 1.0), WeightedText(100, 0.5), WeightedText(81, 2.0))
    words = sum(len(source.split()) for source, _ in as_text(data))
    assert data.facts["source"]["words"] == words
    assert data.facts["texts"][0] == {"text": "news", "pairs": 120}
    lines = list(data.report())
    assert lines[:4] == [
        "training pairs  301",
        "  news          120",
        "  web.tsv       100, weight 0.5, tag <web>",
        "  other         81, weight 2, tag <bt>, reversed",
    ]


@pytest.mark.parametrize(
    "change", [{"tag": "<bt>"}, {"tag": None}, {"reverse": True}], ids=["other", "none", "reverse"]
)
def test_tags_and_reversing_are_other_text(folder, change):
    other = [TEXTS[0], {**TEXTS[1], **change}, TEXTS[2]]
    assert prepare(config_of(folder, other)).key != prepare(config_of(folder, TEXTS)).key


def test_the_plan_reads_each_text_by_its_weight(folder):
    config = config_of(folder, TEXTS, training={"max_steps": None, "max_epochs": 7})
    data = prepare(config)
    plan = Plan.of(config, data)
    epochs = [plan.epoch_updates(epoch) for epoch in range(7)]
    for updates in epochs:
        counts = Counter(int(i) for update in updates for batch in update for i in batch)
        assert [counts[i] for i in range(120)] == [1] * 120
        assert sorted(counts[i] for i in range(120, 220)) == [0] * 50 + [1] * 50
        assert [counts[i] for i in range(220, 301)] == [2] * 81
    # The drawn sentences have other lengths in each epoch, so the numbers of updates may differ.
    assert plan.total_steps == sum(map(len, epochs))
    assert replace(plan, texts=()).total_steps == 7 * len(replace(plan, texts=()).epoch_updates(0))


# ---- Pairs that are held out ----


def test_held_out_pairs_are_of_plain_texts_and_nothing_of_them_leaks(folder):
    """The other texts are copies of the plain one, so each of them has every held-out sentence."""
    forms = {"tag": "<web>"}, {"reverse": True}, {"tag": "<bt>", "reverse": True}
    copies = ["news", *({"text": "news", **form} for form in forms)]
    data = prepare(config_of(folder, copies, data={"held_out": 6}))
    held = {*data.dev_split.pairs(), *data.test_split.pairs()}
    assert len(held) == 12 and held <= set(NEWS)
    texts = {text for pair in held for text in pair}
    left = [pair for pair in NEWS if not texts & set(pair)]
    assert [text.pairs for text in data.texts] == [len(left)] * 4
    for pair in as_text(data):
        for side in pair:
            assert side.removeprefix("<bt> ").removeprefix("<web> ") not in texts


def test_a_held_out_source_leaks_behind_no_tag(folder):
    """Though its translation is another one in the text with the tag."""
    write_pairs(folder, "odd", [(source, f"{i}") for i, (source, _) in enumerate(NEWS)])
    train = ["news", {"text": "odd", "tag": "<bt>"}]
    data = prepare(config_of(folder, train, data={"held_out": 6, "max_length_ratio": None}))
    held = {*data.dev_split.text[0], *data.test_split.text[0]}
    sources = [source.removeprefix("<bt> ") for source, _ in as_text(data)]
    assert len(held) == 12 and not held & set(sources)
    assert data.texts[1].pairs == sum(source not in held for source, _ in NEWS)


@pytest.mark.parametrize("settings", [{"tag": "<bt>"}, {"reverse": True}])
def test_text_of_the_dev_set_is_found_in_every_form(folder, settings):
    write_pairs(folder, "dev", [*WEB[:7], ("nowhere", "nirgends")])
    train = ["news", {"text": "web.tsv", **settings}]
    data = prepare(config_of(folder, train, data={"dev": "dev"}))
    assert (data.facts["overlap"]["dev"]["lines"], data.facts["overlap"]["dev"]["pairs"]) == (7, 7)


# ---- The config ----


@pytest.fixture
def recipe(folder):
    path = folder / "recipe.yaml"
    path.write_text(config_file.dump(config_of(folder, "news")))
    return path


def test_from_the_command_line_and_back(recipe):
    text = "data.train=[news, {text: web.tsv, weight: 2, tag: <bt>, reverse: true}]"
    config = config_file.load(recipe, [text])
    (first, second) = config.data.texts
    assert (first.text, first.weight, first.tag, first.reverse) == ("news", 1, None, False)
    assert (second.text, second.weight, second.tag, second.reverse) == ("web.tsv", 2, "<bt>", True)
    recipe.write_text(config_file.dump(config))
    assert config_file.load(recipe) == config
    assert config_file.changed(config)["data.train"][1]["weight"] == 2.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{text: web, weight: 0}", "data.train.1.weight: 0: expected greater than 0"),
        ("{text: web, tag: a b}", "data.train.1.tag: 'a b': expected a word without spaces"),
        ("{weight: 2}", "data.train.1.text: missing; it must be given"),
        ("{text: web, wieght: 2}", "data.train.1.wieght: unknown key; known keys: text, weight"),
        ("{text: web, tag: <new>}", "must have the tags of data.train; missing: <new>"),
    ],
)
def test_wrong_mappings(recipe, text, message):
    with pytest.raises(UsageError) as error:
        config_file.load(recipe, [f"data.train=[news, {text}]"])
    assert message in str(error.value) and "1 problem\n" in str(error.value)


# ---- Subwords ----


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
def test_a_symbol_is_one_id(kind):
    symbols = ["<bt>", "<b,t>", "<bt>>", "[A-Z]+"]
    pairs = [(f"<bt> {source} < b t >", target) for source, target in PAIRS]
    subwords = train_subwords(pairs, vocab_size=150, type=kind, joint=False, user_symbols=symbols)
    for vocabulary in subwords.vocabularies:
        assert len({vocabulary.encode(symbol)[-1] for symbol in symbols}) == 4
        assert vocabulary.pieces(vocabulary.encode("<bt>")) == ["\u2581", "<bt>"]
        for text in ("<bt> a red", "<bt>", "a<bt>>e <b,t> <bt>", " <bt>  e", "[A-Z]+<bt>", ""):
            encoded_text = vocabulary.encode(text)
            assert vocabulary.decode(encoded_text) == text
            places = vocabulary.places(text)
            for i, (start, end) in zip(encoded_text, places, strict=True):
                if vocabulary.pieces([i])[0] in symbols:
                    assert text[start:end] == vocabulary.pieces([i])[0]


@pytest.mark.parametrize(("kind", "rate"), [("bpe", 0.1), ("bpe", 0.9), ("unigram", 0.1)])
def test_sampling_keeps_symbols_whole(kind, rate):
    pairs = [(f"<bt> {source} < b t >", target) for source, target in PAIRS]
    options = {"vocab_size": 150, "type": kind}
    vocabulary = train_subwords(pairs, **options, user_symbols=["<bt>", "<bt>>"]).source
    text = f"<bt> {PAIRS[0][0]} x<bt>>y <bt><bt>  z"
    drawn = [vocabulary.sample(text, rate) for _ in range(300)]
    assert len(set(map(tuple, drawn))) > 50
    for ids in drawn:
        pieces = vocabulary.pieces(ids)
        assert (pieces.count("<bt>"), pieces.count("<bt>>")) == (3, 1)
        assert "".join(pieces).replace("\u2581", " ") == f" {text}"
        assert vocabulary.decode(ids) == text
    assert vocabulary.sample("", rate) == []


def test_a_tag_that_other_subwords_do_not_have(folder, capsys):
    subwords = train_subwords(PAIRS)
    config = config_of(folder, TEXTS, training={"init_from": "other"})
    prepare(config, subwords)
    warnings = capsys.readouterr().err
    assert "the tag <web> is not one of the subwords" in warnings
    assert "the tag <bt> is not one of the subwords" in warnings
    prepare(config_of(folder, TEXTS))
    assert "is not one of the subwords" not in capsys.readouterr().err
