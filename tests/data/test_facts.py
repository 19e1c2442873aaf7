"""The facts about a corpus, against counts by other means; from the cache, they are the same."""

import json
from collections import Counter

import numpy as np
import pytest

from tests.support import demo_pairs, make_config, write_pairs
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.facts import EXAMPLES
from transformer_mt.data.prepare import prepare
from transformer_mt.training.run import decided

PAIRS = demo_pairs(300)


@pytest.fixture
def facts(tmp_path):
    """A function that gives the facts about these pairs, and the prepared data."""

    def of(train=PAIRS[:260], dev=PAIRS[260:280], test=PAIRS[280:], langs=("en", "de"), **sections):
        for name, pairs in (("train", train), ("dev", dev), ("test", test)):
            write_pairs(tmp_path / "text", name, pairs, langs)
        data = {"dev": "dev", "test": "test", "source_lang": langs[0], "target_lang": langs[1]}
        sections["data"] = data | sections.get("data", {})
        data = prepare(make_config(tmp_path, **sections))
        return data.facts, data

    return of


def test_the_counts(facts, tmp_path):
    found, data = facts()
    assert found["files"]["train"] == [str(tmp_path / "text" / f"train.{x}") for x in ("en", "de")]
    assert (found["pairs"], found["dev"], found["test"]) == (260, 20, 20)
    assert found["dropped"] == {} and found["copies"] == {"count": 0, "examples": []}
    joint = Counter()
    for place, side in enumerate(("source", "target")):
        texts = [pair[place] for pair in PAIRS[:260]]
        ids = [data.subwords.source.encode(text) for text in texts]
        lengths = list(map(len, ids))
        own = found[side]
        assert own["sentences"] == 260 and own["subwords"] == sum(lengths)
        assert own["mean"] == pytest.approx(np.mean(lengths)) and own["longest"] == max(lengths)
        assert own["words"] == sum(len(text.split()) for text in texts)
        assert own["characters"] == sum(map(len, texts))
        assert own["subwords_per_word"] == pytest.approx(own["subwords"] / own["words"])
        for first, last, count in own["lengths"]:
            assert count == sum(first <= length <= last for length in lengths)
        assert sum(count for _, _, count in own["lengths"]) == 260
        joint.update(i for sentence in ids for i in sentence)
    # Both sides have the same vocabulary, whose four special subwords are not text.
    vocabulary = data.subwords.source
    special = {vocabulary.pad, vocabulary.unk, vocabulary.bos, vocabulary.eos}
    text = [i for i in range(vocabulary.size) if i not in special]
    rare = sum(joint[i] < 10 for i in text) / len(text)
    assert found["source"]["rare"] == found["target"]["rare"] == pytest.approx(rare)
    assert json.loads(json.dumps(found)) == found


def test_rare_subwords_of_separate_vocabularies(facts):
    found, data = facts(subword={"joint": False, "vocab_size": 150})
    for place, side in enumerate(("source", "target")):
        vocabulary = data.subwords.vocabularies[place]
        counts = Counter(i for pair in PAIRS[:260] for i in vocabulary.encode(pair[place]))
        rare = sum(counts[i] < 10 for i in range(4, vocabulary.size)) / (vocabulary.size - 4)
        assert found[side]["rare"] == pytest.approx(rare)
        assert found[side]["vocabulary"] == vocabulary.size


def test_a_language_without_spaces_has_no_words(facts):
    pairs = [
        ("我们 今天去学校。" + "学" * i, "we go to school today " * (i + 1)) for i in range(20)
    ]
    found, data = facts(pairs, pairs[:2], pairs[:2], ("zh", "en"), data={"max_length_ratio": None})
    assert found["source"]["words"] is None and found["source"]["subwords_per_word"] is None
    assert found["source"]["characters"] == sum(len(source) for source, _ in pairs)
    lines = list(data.report())
    assert "per character" in lines[1] and "per word" in lines[2]


def test_unknown_text_of_all_sets_is_counted(facts, tmp_path):
    """Against a count by hand, of words."""
    (tmp_path / "types").write_text("a\nb\n")
    vocabulary = {"type": "vocabulary", "vocabulary": str(tmp_path / "types")}
    train = [("a b a b", "b a x b"), ("a a a a", "b b b b"), ("a b z a", "b x y b")] * 3
    found, _ = facts(train, [("a b", "a b")], [("q a", "")], subword=vocabulary)
    shares = {
        (name, side): (unknown["share"], unknown["examples"])
        for name, sides in found["unknown_text"].items()
        for side, unknown in sides.items()
    }
    assert shares.pop(("train", "source")) == (3 / 36, ["z"])
    assert shares.pop(("train", "target")) == (9 / 36, ["x", "y"])
    assert shares.pop(("test", "source")) == (0.5, ["q"])
    assert set(shares) == {("dev", "source"), ("dev", "target"), ("test", "target")}
    assert all(unknown == (0.0, []) for unknown in shares.values())
    assert found["unknown"] == 12


@pytest.mark.parametrize(("protect", "unknown"), [(["tags"], []), ([], ["<", ">", "/"])])
def test_a_protected_span_of_the_dev_set_is_no_unknown_text(facts, protect, unknown):
    dev = [("<b>A dog</b>", "<b>Ein Hund</b>")]
    found, _ = facts(dev=dev, data={"protect": protect})
    assert found["unknown_text"]["dev"]["source"]["examples"] == unknown


def test_the_parts_of_words_with_bpe_are_one_word(facts, tmp_path):
    (tmp_path / "types").write_text("a\nb@@\nc\n")
    pairs = [("a b@@ b@@ c", "c b@@ a a")] * 3
    vocabulary = {"type": "vocabulary", "vocabulary": str(tmp_path / "types")}
    found, _ = facts(pairs, pairs[:1], pairs[:1], subword=vocabulary)
    assert (found["source"]["words"], found["target"]["words"]) == (6, 9)
    assert found["source"]["subwords_per_word"] == 2


def mixed() -> list[tuple[str, str]]:
    """Pairs of which some are left out, for each of the reasons, between others."""
    pairs = []
    for number, pair in enumerate(PAIRS[:260]):
        pairs.append(pair)
        if number % 20 == 5:
            long = f"und {number} " * 24
            pairs += [("", "x"), PAIRS[0], (long, long), ("und", f"und {number} " * 6), ("a", " ")]
    return pairs


LIMITED = {"drop_duplicates": True, "max_length": 40}


def test_what_was_left_out_has_examples(facts):
    found, data = facts(mixed(), data=LIMITED)
    assert {reason: one["count"] for reason, one in found["dropped"].items()} == (
        data.train.facts["dropped"]
    )
    assert len(found["dropped"]) == 4
    for reason, one in found["dropped"].items():
        assert len(one["examples"]) == min(EXAMPLES, one["count"])
        for source, target in one["examples"]:
            lengths = sorted(map(len, data.subwords.source.encode_all([source, target])))
            assert {
                "empty on a side": not (source.strip() and target.strip()),
                "repeated": mixed().count((source, target)) > 1,
                "longer than 40 subwords": lengths[1] > 40,
                "lengths differ by more than 6 to 1": lengths[1] + 1 > 6 * (lengths[0] + 1),
            }[reason]


def test_held_out_pairs_are_an_example_and_no_overlap(facts):
    found, data = facts(data={"dev": None, "test": None, "held_out": 10})
    assert found["dropped"]["held out for dev or test"]["count"] >= 20
    held = set(data.dev_split) | set(data.test_split)
    texts = {text for pair in held for text in pair}
    for pair in found["dropped"]["held out for dev or test"]["examples"]:
        assert texts & set(pair)
    assert found["overlap"]["dev"]["lines"] == found["overlap"]["test"]["lines"] == 0


def test_the_text_is_read_only_once(facts, monkeypatch):
    first, _ = facts()
    monkeypatch.setattr("transformer_mt.data.facts._read", None)
    assert facts()[0] == first


def test_the_overlap_with_the_training_text(facts):
    train = PAIRS[:200]
    dev = [
        *PAIRS[200:210],
        train[3],  # a whole pair
        (train[4][0], "etwas anderes"),
        ("something else", train[5][1]),
        (train[6][0], train[7][1]),  # both sides, but of different pairs
        (train[8][1], train[8][0]),  # the sides are not compared with each other
        ("", ""),
    ]
    found, _ = facts([*train, ("", ""), ("x", "")], dev, PAIRS[210:220])
    overlap = found["overlap"]["dev"]
    assert (overlap["lines"], overlap["pairs"]) == (4, 1)
    assert overlap["examples"] == [list(dev[10]), list(dev[11]), list(dev[12])]
    assert found["overlap"]["test"] == {"lines": 0, "pairs": 0, "examples": []}
    # Text that is not trained on, because it is too long, does no harm.
    long = (train[3][0] * 20, "x")
    found, _ = facts([*train, long], [*PAIRS[200:210], long])
    assert found["overlap"]["dev"]["lines"] == 0


def test_the_overlap_follows_the_dev_set(facts):
    """The facts in the cache belong to one training text, dev set and test set."""
    assert facts()[0]["overlap"]["dev"]["lines"] == 0
    assert facts(dev=PAIRS[:7])[0]["overlap"]["dev"]["pairs"] == 7
    assert facts(test=PAIRS[:5])[0]["overlap"]["test"]["pairs"] == 5


# ---- What decides how the model is decoded ----


def test_the_share_of_lines_with_several_sentences(facts):
    pairs = [*PAIRS[:200], *(("One is here. Two is there.", "Eins! Zwei! Drei!"),) * 60]
    found, _ = facts(train=pairs)
    assert found["source"]["several_sentences"] == found["target"]["several_sentences"] == 60 / 260
    assert facts()[0]["source"]["several_sentences"] == 0


def test_the_length_ratio_allows_what_the_targets_need(facts):
    assert facts()[0]["length_ratio"] == 2.0  # the targets are about as long as the sources
    pairs = [(f"{source[:2]} {i}", f"{target} {target} {target}") for i, (source, target) in
             enumerate(PAIRS[:260])]  # fmt: skip
    found, data = facts(train=pairs, data={"max_length_ratio": None})
    sources, targets = data.train.source.lengths, data.train.target.lengths
    assert (2.0 * sources + 20 < targets).mean() > 0.5
    ratio = found["length_ratio"]
    assert (ratio * sources + 20 >= targets).all() and (ratio / 1.5 * sources + 20 < targets).any()


def test_the_config_gets_what_the_text_decides(facts):
    found, _ = facts()
    longest = found["source"]["longest"]
    new = decided(DecodingConfig(), found, DecodingConfig())
    assert (new.max_length_ratio, new.split_sentences, new.max_source_length) == (2, True, longest)
    # What the recipe gives stays.
    given = DecodingConfig(max_length_ratio=7.0, split_sentences=False, max_source_length=9)
    assert decided(given, found, DecodingConfig()) == given
    # A model that training starts from has seen text of its own.
    earlier = DecodingConfig(max_length_ratio=3.0, max_source_length=500)
    new = decided(DecodingConfig(), found, earlier)
    assert (new.max_length_ratio, new.max_source_length) == (3.0, 500)
    several = found | {"source": found["source"] | {"several_sentences": 0.3}}
    assert decided(DecodingConfig(), several, DecodingConfig()).split_sentences is False
