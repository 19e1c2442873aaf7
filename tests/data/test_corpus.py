"""Corpora come in line for line, pair by pair, and what leaves them is counted."""

import bz2
import gzip
import lzma
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import paddlenlp.datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_mt.config.text import DataConfig
from transformer_mt.data.corpus import (
    Corpus,
    Split,
    hold_out,
    open_corpus,
    training_filter,
)
from transformer_mt.data.datasets import DATASETS
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = [("one", "eins"), ("", ""), (" two ", "zwei\t"), ("a\x0bb\x0cc\x85d\u2028e\rf", "\u2029")]


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    content = "".join(line + end for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    path.write_bytes(compress.get(path.suffix, bytes)(content))
    return path


def write_pairs(folder: Path, prefix: str, pairs, ending: str = "", end: str = "\n") -> None:
    for side, lang in enumerate(("en", "de")):
        write(folder / f"{prefix}.{lang}{ending}", [pair[side] for pair in pairs], end)


def data_config(folder: Path, **keys) -> DataConfig:
    return DataConfig(**{"root": str(folder), "source_lang": "en", "target_lang": "de", **keys})


# ------------------------------------------------------------------------------ dataset: files


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_files_of_a_prefix(tmp_path, ending, end):
    write_pairs(tmp_path, "corpus.v1", PAIRS, ending, end)
    write_pairs(tmp_path, "dev", PAIRS[:1])
    corpus = open_corpus(data_config(tmp_path, train="corpus.v1", dev="dev"))
    assert list(corpus.train) == PAIRS
    assert list(corpus.train) == PAIRS  # read anew
    assert list(corpus.dev) == PAIRS[:1] and corpus.test is None
    assert corpus.train.text[1] == [target for _, target in PAIRS]


@pytest.mark.parametrize("name", ["pairs.tsv", "pairs.tsv.xz"])
def test_a_tsv(tmp_path, name):
    pairs = [("one", "eins"), (" two", "zwei "), ("", ""), ("a\rb\u2028c", "\x85")]
    write(tmp_path / name, ["\t".join(pair) for pair in pairs])
    assert list(open_corpus(data_config(tmp_path, train=name)).train) == pairs


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["en\tde", "a\tb"], "line 1: a header"),
        (["Source\tTarget", "a\tb"], "line 1: a header"),
        (["a\tb", '"He says ""hi""."\tEr grüßt.'], "quoted as in a CSV file"),
        (['"a, b"\t"c"', '"d"\t"e"'], "quoted as in a CSV file"),
    ],
)
def test_a_table_of_another_program_is_refused_with_a_command_that_works(tmp_path, rows, message):
    write(tmp_path / "x.tsv", rows)
    with pytest.raises(UserError, match=message) as caught:
        open_corpus(data_config(tmp_path, train="x.tsv"))
    command = re.split(r"(?:out|away): ", str(caught.value))[1]
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    (tmp_path / "NEW_FILE").rename(tmp_path / "new.tsv")
    pairs = list(open_corpus(data_config(tmp_path, train="new.tsv")).train)
    assert len(pairs) == (1 if "header" in message else 2)
    assert ("a", "b") in pairs or ("a, b", "c") in pairs


@pytest.mark.parametrize(
    "rows",
    [
        ["en\tein", "de\tvon"],  # words, not names of languages
        ['"Come!" he said.\t"Komm!" sagte er.', '"Yes."\t"Ja."', "No.\tNein."],
        ['"Yes."\t"Ja."'],
    ],
)
def test_quotations_and_short_words_are_text(tmp_path, rows):
    write(tmp_path / "x.tsv", rows)
    pairs = list(open_corpus(data_config(tmp_path, train="x.tsv")).train)
    assert pairs == [tuple(row.split("\t")) for row in rows]


any_line = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"])).filter(
    lambda line: not line.endswith("\r") and not line.startswith("\ufeff")
)


@settings(max_examples=50)
@given(
    pairs=st.lists(st.tuples(any_line, any_line), min_size=1), ending=st.sampled_from(["", ".gz"])
)
def test_any_text_survives_paddlenlp(pairs, ending, tmp_path_factory):
    root = tmp_path_factory.getbasetemp() / f"any-text{ending}"
    write_pairs(root, "train", pairs, ending)
    assert list(open_corpus(data_config(root)).train) == pairs


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"root": "nowhere"}, r"data\.root: nowhere: there is no such folder"),
        ({"train": "tr*n"}, r"data\.train: there is no file tr\*n\.en \(or \.gz"),
        ({"test": "x.tsv"}, r"data\.test: there is no file x\.tsv "),
        ({"target_lang": "fr"}, r"data\.train: there is no file train\.fr "),
    ],
)
def test_a_missing_file(tmp_path, keys, message):
    write_pairs(tmp_path, "train", PAIRS)
    with pytest.raises(UsageError, match=message):
        open_corpus(data_config(tmp_path, **keys))


def test_a_text_is_read_to_its_end(tmp_path, monkeypatch):
    """PaddleNLP, which takes seconds to import, is not needed for it."""
    monkeypatch.setitem(sys.modules, "paddlenlp.datasets", None)
    write_pairs(tmp_path, "train", PAIRS)
    write_pairs(tmp_path, "dev", [("a", " "), ("b", "\u2003"), ("", "")], ".gz")
    write(tmp_path / "test.tsv", ["\tx", " \ty"])
    corpus = open_corpus(data_config(tmp_path, dev="dev", test="test.tsv"))
    assert [split.text for split in corpus[1:3]] == [
        (["a", "b", ""], [" ", "\u2003", ""]),
        (["", " "], ["x", "y"]),
    ]
    corpus = open_corpus(data_config(tmp_path, test="test.tsv"))
    write(tmp_path / "test.tsv", ["a\tb", "a"])
    with pytest.raises(UserError, match=r"test\.tsv, line 2: 1 column"):
        _ = corpus.test.text
    (tmp_path / "train.de").write_bytes(b"a\n" * 3 + b"\xff\n")
    with pytest.raises(UserError, match=r"train\.de, line 4: not UTF-8"):
        _ = corpus.train.text


def test_unequal_counts_name_both(tmp_path):
    write_pairs(tmp_path, "train", PAIRS)
    write(tmp_path / "dev.en", ["a"] * 1500)
    write(tmp_path / "dev.de.gz", ["a"] * 1499)
    message = r"data\.dev: (?s:.*) 1,500 lines in \S+dev\.en\n +1,499 lines in \S+dev\.de\.gz\n"
    with pytest.raises(UserError, match=message):
        open_corpus(data_config(tmp_path, dev="dev"))


@pytest.mark.parametrize("name", ["train", "x.tsv"])
def test_an_empty_file(tmp_path, name):
    for ending in (".en", ".de", ""):
        write(tmp_path / f"{name}{ending}", [])
    with pytest.raises(UserError, match=r"data\.train: .* is empty"):
        open_corpus(data_config(tmp_path, train=name))


def test_content_changes_with_the_text_alone(tmp_path):
    write_pairs(tmp_path / "plain", "train", PAIRS)
    write_pairs(tmp_path / "packed", "train", PAIRS, ".gz")
    write_pairs(tmp_path / "other", "train", [*PAIRS[:-1], ("x", "y")])
    plain, packed, other = (
        open_corpus(data_config(tmp_path / name)).train.content()
        for name in ("plain", "packed", "other")
    )
    assert plain == packed != other


# -------------------------------------------------------------------------- dataset: wmt14ende


def wmt_layout(root: Path, pairs, references, number: int = 123) -> DataConfig:
    bpe, tokenised = root / "wmt14_ende_data_bpe", root / "wmt14_ende_data"
    for stem in ("train.tok.clean", "newstest2013.tok", "newstest2014.tok"):
        for side, lang in enumerate(("en", "de")):
            write(bpe / f"{stem}.bpe.{number}.{lang}", [pair[side] for pair in pairs])
            write(tokenised / f"{stem}.{lang}", references)
    write(bpe / f"vocab_all.bpe.{number}", ["<s>", "<e>", "<unk>", "ab@@", "c"])
    return data_config(root, dataset="wmt14ende", dev="dev", test="test")


def test_wmt14ende_whatever_number_follows_bpe(tmp_path):
    pairs = [("ab@@ c", "c"), ("c", "ab@@ ab@@ c")]
    for number in (8000, 33708):
        config = wmt_layout(tmp_path / str(number), pairs, ["c", "ababc"], number)
        corpus = open_corpus(config)
        assert [list(split) for split in corpus[:3]] == [pairs] * 3
        assert corpus.test.text[1] == corpus.dev.text[1] == ["c", "ababc"]
        assert corpus.train.text[1] == ["c", "ab@@ ab@@ c"]
        assert DATASETS["wmt14ende"].vocabulary(config.root).name == f"vocab_all.bpe.{number}"


def test_the_text_of_wmt14ende_has_its_references(tmp_path):
    config = wmt_layout(tmp_path, [("c", "c"), ("c", "c")], ["c", "c"])
    corpus = open_corpus(config)
    (tmp_path / "wmt14_ende_data" / "newstest2014.tok.de").write_bytes(b"c\nc\xe9\n")
    with pytest.raises(UserError, match=r"newstest2014\.tok\.de, line 2: not UTF-8"):
        _ = corpus.test.text


def test_wmt14ende_keeps_its_pairs_in_step(tmp_path):
    """PaddleNLP's own reader ends a line at a carriage return, so that every later source gets
    another sentence's target, and leaves out pairs that are empty on both sides, so that every
    later translation is scored against another sentence's reference."""
    pairs = [("a\rb", "A B"), ("", ""), ("c\u2028\x85c", "C"), ("", "D"), ("e", "E")]
    corpus = open_corpus(wmt_layout(tmp_path, pairs, ["A B", "", "C", "D", "E"]))
    assert list(corpus.test) == pairs
    assert len(corpus.test.text[1]) == len(list(corpus.test))

    from paddlenlp.datasets import load_dataset

    files = [[str(path) for path in corpus.test.paths]]
    theirs = load_dataset("wmt14ende", data_files=files, splits=["test"], lazy=False)
    assert [(pair["source"], pair["target"]) for pair in theirs] != pairs


def test_wmt14ende_without_a_network(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no network")

    monkeypatch.setattr(paddlenlp.datasets, "load_dataset", refuse)
    monkeypatch.setattr("transformer_mt.data.datasets.DATA_HOME", tmp_path)
    config = DataConfig(dataset="wmt14ende", source_lang="en", target_lang="de")
    with pytest.raises(UserError, match=r"could not be downloaded from http(?s:.*)data\.root=FOLD"):
        open_corpus(config)


def test_wmt14ende_references_are_counted(tmp_path):
    with pytest.raises(UserError, match=r"data\.dev: the files must have one line for each pair"):
        open_corpus(wmt_layout(tmp_path, [("a", "b")], ["b", "c"]))


# ------------------------------------------------------------------------------ training pairs


def split_of(folder: Path, pairs) -> Split:
    write_pairs(folder, "train", pairs)
    return open_corpus(data_config(folder)).train


def filtered(split: Split, held_out: frozenset[str], drop_duplicates: bool):
    """The pairs that are left, and how many were dropped for each reason."""
    reason_to_drop = training_filter(held_out, drop_duplicates)
    reasons = [(pair, reason_to_drop(pair)) for pair in split]
    left = [pair for pair, reason in reasons if reason is None]
    return left, Counter(reason for _, reason in reasons if reason is not None)


def test_reasons_to_leave_pairs_out_are_counted(tmp_path):
    blank = [("", "X"), ("x", ""), (" \u2028\x85", "X")]
    held = [("held", "H"), ("h", "gehalten"), ("gehalten", "h")]
    others = [("b", "b"), ("a", "A"), ("b", "B "), ("bB", "c"), ("b", "Bc")]  # no repetitions
    split = split_of(tmp_path, [("b", "B"), *blank, *held, ("b", "B"), *others, ("b", "B")])
    held_out = frozenset(["held", "gehalten"])
    left, dropped = filtered(split, held_out, False)
    assert left == [("b", "B"), ("b", "B"), *others, ("b", "B")]
    assert dropped == {"empty on a side": 3, "held out for dev or test": 3}

    left, dropped = filtered(split, held_out, True)
    assert left == [("b", "B"), *others]
    assert dropped == {"empty on a side": 3, "held out for dev or test": 3, "repeated": 2}


# ------------------------------------------------------------------------------------- hold out


def corpus_of(folder: Path, pairs) -> Corpus:
    return Corpus(split_of(folder, pairs), None, None)


def repetitive_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of few words, so that sources and targets recur in different pairs."""
    rng = random.Random(seed)
    return [(f"s{rng.randrange(count)}", f"t{rng.randrange(count)}") for _ in range(count)]


@settings(max_examples=25)
@given(
    count=st.integers(1, 120),
    empty=st.integers(0, 30),
    held_out=st.integers(0, 20),
    named=st.sampled_from([(), ("dev",), ("test",), ("dev", "test")]),
    seed=st.integers(0, 5),
)
def test_hold_out(count, empty, held_out, named, seed, tmp_path_factory):
    """A tenth of the text at most for each set, and not much more leaves training."""
    root = tmp_path_factory.mktemp("hold-out")
    pairs = repetitive_pairs(count, seed) + [("", "x")] * empty
    corpus = corpus_of(root, pairs)
    corpus = corpus._replace(**dict.fromkeys(named, corpus.train))
    held = hold_out(corpus, data_config(root, held_out=held_out), seed, root / "held")

    size = min(held_out, count // 10)
    wanted = {"dev", "test"} - set(named)
    assert set(held.splits) in (wanted, set())
    sizes = {len(list(split)) for split in held.splits.values()}
    assert len(sizes) < 2 and all(0 < own <= size for own in sizes)
    assert all(name == split.name for name, split in held.splits.items())
    drawn = Counter(pair for split in held.splits.values() for pair in split)
    assert drawn <= Counter(pairs[:count])  # each from a place of its own, and none empty

    # Neither a source nor a target of theirs is left in training; nothing else is missing.
    left, dropped = filtered(corpus.train, held.texts, False)
    texts = {text for pair in drawn for text in pair}
    assert left == [pair for pair in pairs[:count] if not texts & set(pair)]
    assert len(left) + dropped.total() == len(pairs)
    assert dropped["held out for dev or test"] <= max(size * len(wanted), count // 10)
    # As many as can be had for nothing are drawn.
    seen = Counter(text for pair in pairs[:count] for text in pair)
    alone = sum(seen[source] == seen[target] == 1 for source, target in pairs[:count])
    assert not wanted or drawn.total() >= min(size, alone // len(wanted)) * len(wanted)


def held_out_of(folder: Path, pairs, **settings):
    """The held-out pairs of both sets, those that are left for training, and those that left."""
    corpus = corpus_of(folder, pairs)
    held = hold_out(corpus, data_config(folder, **settings), 1, folder / "held")
    left, dropped = filtered(corpus.train, held.texts, False)
    drawn = [pair for split in held.splits.values() for pair in split]
    return drawn, left, dropped["held out for dev or test"]


def test_unique_pairs_are_drawn_as_ever(tmp_path):
    """Of a text without repetitions, each version of the program draws the same pairs."""
    pairs = [(f"s{i}", f"t{i}") for i in range(100)]
    drawn, _, _ = held_out_of(tmp_path, pairs, held_out=4)
    assert drawn == [pairs[i] for i in (8, 17, 72, 97, 15, 32, 57, 63)]


def test_many_translations_of_each_sentence(tmp_path):
    """Each pair that is drawn costs 19 others, so fewer are drawn."""
    pairs = [(f"s{i}", f"t{i} {j}") for i in range(200) for j in range(20)]
    drawn, left, gone = held_out_of(tmp_path, pairs)
    assert len({source for source, _ in drawn}) == 20 and len(left) == 3600
    # Each sentence twice costs as many pairs again.
    twice = [(f"s{i}", f"t{i}") for i in range(1000)] * 2
    drawn, left, gone = held_out_of(tmp_path, twice, held_out=50)
    assert len(set(drawn)) == 100 and gone == 200


def test_labels_as_targets(tmp_path, capsys):
    pairs = [(f"sentence {i}", "AB"[i % 2]) for i in range(40)]
    drawn, left, gone = held_out_of(tmp_path, pairs)
    assert len(drawn) == gone == 8 and len(left) == 32
    assert not {source for source, _ in drawn} & {source for source, _ in left}
    assert "only 2 different targets" in capsys.readouterr().err


def test_equal_pairs_are_not_held_out(tmp_path, capsys):
    """If they were, nothing would be left to train on."""
    drawn, left, gone = held_out_of(tmp_path, [("a", "b")] * 1000)
    assert not drawn and not gone and len(left) == 1000
    said = capsys.readouterr().err
    assert "data.dev is not given, and no pair can be held out" in said and "data.test" in said


def test_pairs_that_are_surely_too_long_are_not_drawn(tmp_path):
    pairs = [(f"a{i} " * (1 + 20 * (i % 2)), f"b{i}") for i in range(100)]
    drawn, _, _ = held_out_of(tmp_path, pairs, max_length=20)
    assert len(drawn) == 10 and all(len(source.split()) == 1 for source, _ in drawn)


def test_hold_out_keeps_odd_text(tmp_path):
    """What is written down reads back as what was drawn."""
    odd = [(f"{i}\u2028\x85\rx", f"\x0b{i}\tä\r") for i in range(40)]
    write(tmp_path / "train.en", [source for source, _ in odd])
    write(tmp_path / "train.de", [target for _, target in odd], "\r\n")
    corpus = open_corpus(data_config(tmp_path))
    assert list(corpus.train) == odd
    held = hold_out(corpus, data_config(tmp_path), 1, tmp_path / "held")
    for split in held.splits.values():
        assert len(list(split)) == 4 and set(split) <= set(odd)
    assert held.texts == {text for split in held.splits.values() for pair in split for text in pair}


def test_hold_out_reads_its_pairs_again(tmp_path, monkeypatch):
    corpus = corpus_of(tmp_path, repetitive_pairs(300, 0))
    config = data_config(tmp_path, held_out=20)
    first = hold_out(corpus, config, 1, tmp_path / "held")
    monkeypatch.setattr(Split, "__iter__", lambda split: pytest.fail("the text is read again"))
    assert hold_out(corpus, config, 1, tmp_path / "held") == first and len(first.texts) > 20


@pytest.mark.parametrize("count", [0, 9])
def test_a_corpus_too_small_to_hold_out_of(tmp_path, capsys, count):
    corpus = corpus_of(tmp_path, [("a", "b")] * count + [("", "")])
    for _ in range(2):
        assert hold_out(corpus, data_config(tmp_path), 1, tmp_path / "held") == ({}, frozenset())
    assert "no pair can be held out" in capsys.readouterr().err
