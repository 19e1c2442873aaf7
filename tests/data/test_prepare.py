"""From a config to encoded pairs: the same twice, anew when something changed, and all counted."""

import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from transformer_mt.config.schema import Config
from transformer_mt.data import term_extraction
from transformer_mt.data.prepare import prepare
from transformer_mt.data.spans import SYMBOL
from transformer_mt.data.subword import Subwords
from transformer_mt.utils import files
from transformer_mt.utils.errors import UsageError, UserError

SOME = "der die das ein und ist nicht Haus Hund Katze geht schläft heute morgen wir ihr"
WORDS = SOME.split(" ")


def some_pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    return [
        tuple(" ".join(rng.choices(WORDS, k=rng.randrange(3, 9))) for _ in range(2))
        for _ in range(count)
    ]


def write(folder: Path, name: str, pairs) -> None:
    folder.mkdir(exist_ok=True)
    for side, lang in enumerate(("en", "de")):
        content = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / f"{name}.{lang}").write_bytes(content.encode())


def config(tmp_path: Path, **sections) -> Config:
    languages = {"source_lang": "en", "target_lang": "de"}
    folders = {"root": str(tmp_path / "text"), "cache": str(tmp_path / "cache")}
    data = {"dev": "dev", "test": "test", **folders, **languages}
    values = {"data": data, "subword": {"vocab_size": 100}, "training": {"max_steps": 1}}
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys}
    return Config.model_validate({"model_dir": str(tmp_path / "model"), **values})


@pytest.fixture
def text(tmp_path) -> Path:
    folder = tmp_path / "text"
    write(folder, "train", some_pairs(300))
    write(folder, "dev", [*some_pairs(20, 2), ("", "leer"), ("", "")])
    write(folder, "test", some_pairs(30, 3))
    return folder


def text_of(corpus, subwords: Subwords) -> list[tuple[str, str]]:
    source, target = subwords.source.decode, subwords.target.decode
    return [(source(corpus.source[i]), target(corpus.target[i])) for i in range(len(corpus))]


def test_everything_is_where_it_belongs(tmp_path, text):
    data = prepare(config(tmp_path))
    assert text_of(data.train, data.subwords) == some_pairs(300)
    # A dev set keeps its empty lines, so that its loss means the same in every run.
    assert text_of(data.dev, data.subwords) == [*some_pairs(20, 2), ("", "leer"), ("", "")]
    assert list(data.dev_split) == text_of(data.dev, data.subwords)
    assert list(data.test_split) == some_pairs(30, 3)
    assert data.held_out_files == []
    assert not (tmp_path / "model").exists()


def test_the_report_counts_right(tmp_path, text):
    pairs = some_pairs(300)
    extra = [("", "x"), ("a", " "), pairs[0], pairs[0], ("und " * 40,) * 2, ("und", "und " * 20)]
    write(text, "train", pairs + extra)
    data = prepare(config(tmp_path, data={"drop_duplicates": True, "max_length": 30}))
    tokens = {
        "source": [len(data.subwords.source.encode(source)) for source, _ in pairs],
        "target": [len(data.subwords.target.encode(target)) for _, target in pairs],
    }
    words = {
        side: sum(len(pair[place].split(" ")) for pair in pairs)
        for place, side in enumerate(tokens)
    }
    assert list(data.report()) == [
        "training pairs  300",
        "  left out      2: empty on a side",
        "  left out      2: repeated",
        "  left out      1: longer than 30 subwords",
        "  left out      1: lengths differ by more than 6 to 1",
        *(
            f"{side} subwords {sum(counts):,} ({sum(counts) / 300:.1f} per sentence, "
            f"{sum(counts) / words[side]:.2f} per word, longest {max(counts)})"
            for side, counts in tokens.items()
        ),
        "  unknown       0 (0.000%)",
        f"vocabulary      {data.subwords.source.size:,} (joint)",
        f"  rare          {data.facts['source']['rare']:.1%}; these occur less than 10 times",
        "dev pairs       22",
        "test pairs      30",
    ]


def test_each_file_is_read_as_often_as_it_must_be(tmp_path, text, monkeypatch):
    """To hash and count it; to draw twice; to train subwords; to encode; to look for facts. At the
    next start, only to hash and count it, and to check the test set; and then without PaddleNLP,
    which takes seconds to import."""
    opened, dev = Counter(), {"dev.en": 0, "dev.de": 0}

    def counting(path: Path, original=files.reading):
        opened[path.name] += path.parent == text
        return original(path)

    monkeypatch.setattr(files, "reading", counting)
    drawn = config(tmp_path, data={"dev": None, "held_out": 20})
    prepare(drawn)
    assert opened == {"train.en": 6, "train.de": 6, "test.en": 3, "test.de": 3} | dev
    opened.clear()
    monkeypatch.setitem(sys.modules, "paddlenlp.datasets", None)
    again = prepare(drawn)
    assert opened == {"train.en": 1, "train.de": 1, "test.en": 2, "test.de": 2} | dev
    assert len(again.dev_split.text[0]) == 20 and len(again.test_split.text[0]) == 30


def test_a_vocabulary_that_is_cut_is_told_of_every_time(tmp_path, text, capsys):
    def told(given=None, **sections) -> list[str]:
        prepare(config(tmp_path, **sections), given)
        return [line for line in capsys.readouterr().err.splitlines() if "vocab_size" in line]

    large = {"subword": {"vocab_size": 5000}}
    first = told(**large)
    size = prepare(config(tmp_path, **large)).subwords.source.size
    assert first == [f"subword.vocab_size: the text has {size:,} subwords, not 5,000; using those"]
    capsys.readouterr()
    assert told(**large) == first  # from the cache
    source, target = told(subword={"joint": False, "vocab_size": 4000, "target_vocab_size": 3000})
    assert source.startswith("subword.source_vocab_size") and "not 4,000" in source
    assert target.startswith("subword.target_vocab_size") and "not 3,000" in target
    assert told(subword={"vocab_size": 40}) == []
    # Those of another model have the size that they have.
    assert told(prepare(config(tmp_path)).subwords, **large, training={"init_from": "x"}) == []


def warnings_of(tmp_path, capsys, **sections) -> list[str]:
    prepare(config(tmp_path, **sections))
    lines = capsys.readouterr().err.splitlines()
    return [line.removeprefix("warning: ") for line in lines if line.startswith("warning: ")]


def test_the_same_text_twice_is_warned_of(tmp_path, text, capsys):
    assert warnings_of(tmp_path, capsys) == []
    (same_file,) = warnings_of(tmp_path, capsys, data={"dev": "train"})
    assert same_file.startswith("data.dev is the same text as data.train")
    write(text, "copy", some_pairs(300))
    (same_text,) = warnings_of(tmp_path, capsys, data={"test": "copy"})
    assert same_text.startswith("data.test is the same text as data.train")
    (both,) = warnings_of(tmp_path, capsys, data={"test": "dev"})
    assert both.startswith("data.test is the same text as data.dev")


def test_a_blank_side_is_warned_of(tmp_path, text, capsys):
    write(text, "test", [("a", " "), ("b", "\u2003")])
    found = warnings_of(tmp_path, capsys)
    assert found == ["data.test: all lines of the target are blank"]


def subword_entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").glob("subword-*"))


def test_subwords_are_trained_once(tmp_path, text, capsys):
    def says_it_trains(**sections) -> bool:
        prepare(config(tmp_path, **sections))
        return "training the bpe subword model" in capsys.readouterr().err

    assert says_it_trains()
    assert not says_it_trains()
    # What makes no difference to the model does not make another.
    assert not says_it_trains(data={"max_length": 20}, subword={"sampling": 0.1})
    assert len(subword_entries(tmp_path)) == 1
    assert says_it_trains(subword={"vocab_size": 90})
    assert says_it_trains(subword={"joint": False})
    write(text, "train", some_pairs(299))
    assert says_it_trains()
    assert len(subword_entries(tmp_path)) == 4


def test_subwords_that_are_given(tmp_path, text):
    """Those of the model that training starts from."""
    given = Subwords.train(lambda: iter(some_pairs(50, 9)), config(tmp_path).subword)
    data = prepare(config(tmp_path), given)
    assert data.subwords is given and not subword_entries(tmp_path)
    assert text_of(data.train, given) == some_pairs(300)
    assert data.key != prepare(config(tmp_path)).key


def test_the_key_follows_from_what_is_read(tmp_path, text):
    key = prepare(config(tmp_path)).key
    assert key == prepare(config(tmp_path)).key
    # Neither the cache's place nor what is read later makes a difference.
    assert key == prepare(config(tmp_path, data={"cache": str(tmp_path / "other")})).key
    assert key == prepare(config(tmp_path, training={"seed": 7, "max_steps": 3})).key
    others = [
        prepare(config(tmp_path, data={"max_length": 8})).key,
        prepare(config(tmp_path, data={"max_length_ratio": 2.0})).key,
        prepare(config(tmp_path, data={"drop_duplicates": True})).key,
        prepare(config(tmp_path, subword={"type": "char"})).key,
        prepare(config(tmp_path, data={"source_lang": "de", "target_lang": "en"})).key,
        prepare(config(tmp_path, data={"dev": None, "held_out": 10})).key,
    ]
    write(text, "train", [*some_pairs(299), ("und", "und")])
    others.append(prepare(config(tmp_path)).key)
    assert len({key, *others}) == 8


def test_held_out_pairs_are_not_trained_on(tmp_path, text, capsys):
    pairs = some_pairs(300) * 2  # so that a pair that is held out occurs elsewhere
    write(text, "train", pairs)
    data = prepare(config(tmp_path, data={"dev": None, "test": None, "held_out": 15}))
    trained = text_of(data.train, data.subwords)
    held = [*data.dev_split, *data.test_split]
    assert len(held) == 30 and set(held) <= set(pairs)
    texts = {text for pair in held for text in pair}
    assert trained == [pair for pair in pairs if not texts & set(pair)]
    assert data.train.facts["dropped"] == {"held out for dev or test": 600 - len(trained)}
    assert sorted(path.name for path in data.held_out_files) == [
        "dev.de", "dev.en", "test.de", "test.en",
    ]  # fmt: skip
    assert text_of(data.dev, data.subwords) == list(data.dev_split)
    assert "data.dev is not given: 15 pairs are held out" in capsys.readouterr().err
    # The subwords have not seen them either.
    expected = Subwords.train(lambda: iter(trained), config(tmp_path).subword)
    assert data.subwords.content() == expected.content()


def test_what_is_held_out_is_noticed_with_the_same_subwords(tmp_path, text):
    """A vocabulary file is the same whatever is trained on."""
    path = tmp_path / "types"
    path.write_text("\n".join(WORDS))
    subword = {"type": "vocabulary", "vocabulary": str(path)}
    whole = prepare(config(tmp_path, subword=subword))
    less = prepare(config(tmp_path, subword=subword, data={"dev": None, "held_out": 10}))
    assert len(whole.train) == 300
    assert len(less.train) == 300 - less.train.facts["dropped"]["held out for dev or test"] <= 290


def test_long_dev_pairs_have_no_loss(tmp_path, text, capsys):
    """One that lacks its line ends would need memory with the square of its length."""
    pairs = some_pairs(30)
    long = tuple(" ".join(side) for side in zip(*pairs, strict=True))
    write(text, "dev", [*pairs[:9], long, ("", ""), *pairs[9:]])
    for _ in range(2):  # also if the cache has it
        data = prepare(config(tmp_path, data={"max_length": 100}))
        assert data.dev.lines.tolist() == [*range(9), *range(10, 32)]
        assert data.dev.longest <= 100 and len(data.dev_split.text[0]) == 32
        warnings = [line for line in capsys.readouterr().err.splitlines() if "data.dev" in line]
        assert len(warnings) == 1
        assert "line 10 has" in warnings[0] and "(data.max_length)" in warnings[0]


# -------------------------------------------------------------------------------------- errors


def test_a_wrong_test_set_is_found_before_training(tmp_path, text):
    (text / "test.de").write_bytes(b"a\n" * 29 + b"\xff\n")
    with pytest.raises(UserError, match=r"test\.de, line 30: not UTF-8"):
        prepare(config(tmp_path))


def test_an_error_of_the_text_leaves_nothing_half_written(tmp_path, text):
    write(text, "train", [("", "x")] * 3)
    with pytest.raises(UserError, match="no training pair with text on both sides"):
        prepare(config(tmp_path))
    assert not list((tmp_path / "cache").glob(".*.tmp"))


# ---------------------------------------------------------------------------------- BPE'd text


def test_wmt14_layout(tmp_path, shared_data):
    sections = {
        "data": {"dataset": "wmt14ende", "root": str(shared_data / "wmt14_layout")},
        "subword": {"type": "vocabulary"},
    }
    data = prepare(config(tmp_path, **sections))
    assert data.facts["unknown"] == 0  # its vocabulary is that of the training text
    assert (data.train.text_lines, len(data.dev), data.test_split.line_count) == (
        60_000,
        3000,
        3003,
    )
    _, target = next(iter(data.test_split))
    vocabulary = data.subwords.target
    assert "@@" in target and "@@" not in vocabulary.decode(vocabulary.encode(target))
    assert vocabulary.decode(vocabulary.encode(target)) == data.test_split.text[1][0]


def test_a_vocabulary_file_of_ones_own(tmp_path, text):
    path = tmp_path / "types"
    path.write_text("\n".join(["<s>", "</s>", "<unk>", *WORDS]) + "\n")
    sections = {"subword": {"type": "vocabulary", "vocabulary": str(path)}}
    data = prepare(config(tmp_path, **sections))
    assert text_of(data.train, data.subwords) == some_pairs(300)
    assert data.subwords.source.size == len(WORDS) + 4
    path.unlink()
    with pytest.raises(UsageError, match="types: there is no such file"):
        prepare(config(tmp_path, **sections))


# ---- What is changed in pairs before they are encoded ----

SPANS = [
    ("<b>Hund</b> {a} heute", "{a} ist <b>das</b>"),
    ("wir {name}", "ihr"),
    ("Katze geht", "Hund schläft."),
]


def test_protected_spans_are_symbols(tmp_path, text):
    write(text, "train", [*some_pairs(300), *SPANS])
    protect = ["tags", "placeholders"]
    data = prepare(config(tmp_path, data={"protect": protect}))
    first = data.train.lines.tolist().index(300)
    pairs = text_of(data.train, data.subwords)[first:]
    source, target = pairs[0]
    symbols = SYMBOL.findall(source)
    assert len(set(symbols)) == 3
    assert [target.index(symbol) for symbol in (symbols[2], *symbols[:2])] == sorted(
        target.index(symbol) for symbol in symbols
    )
    assert SYMBOL.sub("", source) == "Hund  heute"
    assert pairs[1:] == SPANS[1:]  # a span without a partner stays text
    # Each symbol is one subword.
    ids = data.train.source[first].tolist()
    assert sum(i in data.subwords.source.user_symbols.values() for i in ids) == 3
    assert data.facts["unmatched"]["count"] == 1
    assert data.facts["unmatched"]["examples"] == [list(SPANS[1])]
    dropped = prepare(config(tmp_path, data={"protect": protect, "drop_unmatched": True}))
    assert len(dropped.train) == len(data.train) - 1
    assert dropped.facts["dropped"]["tags or placeholders of the sides differ"]["count"] == 1


def test_tags_of_texts_are_no_protected_spans(tmp_path, text):
    write(text, "tagged", SPANS)
    changes = {"train": ["train", {"text": "tagged", "tag": "<bt>"}], "protect": ["tags"]}
    symbols = {"user_symbols": ["<bt>"]}
    data = prepare(config(tmp_path, data=changes, subword=symbols))
    assert ("<bt> wir {name}", "ihr") in text_of(data.train, data.subwords)
    assert data.facts["unmatched"]["count"] == 0


def test_the_subwords_of_imported_models_are_not_trained(tmp_path, text):
    with pytest.raises(UsageError, match=r"subword\.type: marian: .* training\.init_from"):
        prepare(config(tmp_path, subword={"type": "marian"}))


def test_the_dev_set_is_read_as_translations_are(tmp_path, text):
    """With decoding.tag before each source that has no tag."""
    symbols = {"user_symbols": ["<de>", "<fr>"]}
    pairs = [("<fr> one", "eins"), ("two", "zwei")]
    write(text, "dev", pairs)
    changes = {"data": {"dev": "dev"}, "subword": symbols}
    plain = prepare(config(tmp_path, **changes))
    tagged = prepare(config(tmp_path, **changes, decoding={"tag": "<de>"}))
    assert text_of(plain.dev, plain.subwords) == pairs
    assert text_of(tagged.dev, tagged.subwords) == [pairs[0], ("<de> two", "zwei")]
    assert tagged.train.key == plain.train.key


def test_noise_of_typing(tmp_path, text):
    """Of the share that is asked for, the same each time, and not in the dev set."""
    plain = prepare(config(tmp_path))
    noisy = [prepare(config(tmp_path, data={"input_noise": 0.5})) for _ in range(2)]
    assert noisy[0].train.key == noisy[1].train.key != plain.train.key
    before, after = (text_of(own.train, own.subwords) for own in (plain, noisy[0]))
    assert text_of(noisy[0].dev, noisy[0].subwords) == text_of(plain.dev, plain.subwords)
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    # A fifth of the noise takes away full stops, of which there are none: 0.4 are changed.
    # Lower case changes only those that have capital letters. Of 300 pairs, the standard deviation
    # of the share is 0.03.
    assert 0.2 < len(changed) / len(before) < 0.5
    upper = [b for a, b in changed if b == (a[0].upper(), a[1].upper())]
    title = [b for a, b in changed if b == (a[0].title(), a[1])]
    assert upper
    assert title


def test_annotated_terms(tmp_path, text, monkeypatch):
    """Words that belong together are found in the text, in the share that is asked for, and the
    dev set has none."""
    monkeypatch.setattr(term_extraction, "FREQUENT", 0)
    backwards = [(source, source[::-1]) for source, _ in some_pairs(300)]
    write(text, "train", backwards)  # each word has a translation of its own
    plain = prepare(config(tmp_path))
    data = {"annotate_terms": 0.5}
    noisy = [prepare(config(tmp_path, data=data)) for _ in range(2)]
    assert noisy[0].train.key == noisy[1].train.key != plain.train.key
    before, after = (text_of(own.train, own.subwords) for own in (plain, noisy[0]))
    assert text_of(noisy[0].dev, noisy[0].subwords) == text_of(plain.dev, plain.subwords)
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert 0.35 < len(changed) / len(before) < 0.65
    annotation = re.compile(" ?⟦=⟧ (.*?)⟦/⟧")
    for (source, target), (new_source, new_target) in changed:
        assert annotation.sub("", new_source) == source and new_target == target
        assert all(word in target for word in annotation.findall(new_source))
    symbols = noisy[0].subwords.source.user_symbols
    assert set(symbols) == {"⟦=⟧", "⟦/⟧"}
