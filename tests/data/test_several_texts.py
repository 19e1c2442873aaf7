"""Training text that consists of several texts: it is the same as one text of all their pairs."""

import pytest

from tests.data.test_corpus import data_config, write, write_pairs
from tests.support import demo_pairs, make_config
from transformer_mt.config import file as config_file
from transformer_mt.data.corpus import open_corpus
from transformer_mt.data.prepare import prepare
from transformer_mt.utils.errors import UsageError, UserError

PAIRS = demo_pairs(90)
NEWS, WEB, MORE = PAIRS[:40], PAIRS[40:70], PAIRS[70:]


@pytest.fixture
def folder(tmp_path):
    """Three texts in three forms, and one of all of them."""
    write_pairs(tmp_path, "news", NEWS)
    write_pairs(tmp_path, "more", MORE, ".gz")
    write(tmp_path / "web.tsv", ["\t".join(pair) for pair in WEB])
    write_pairs(tmp_path, "all", NEWS + WEB + MORE)
    return tmp_path


def test_pairs_follow_one_another(folder):
    for names, pairs in (
        (["news", "web.tsv", "more"], NEWS + WEB + MORE),
        (["web.tsv", "news"], WEB + NEWS),
        (["news", "news"], NEWS + NEWS),
        (["web.tsv"], WEB),
    ):
        split = open_corpus(data_config(folder, train=names)).train
        assert list(split) == pairs and split.line_count == len(pairs)
        assert list(split.pairs()) == pairs


def test_prepared_data_is_that_of_one_text(folder):
    def prepared(train):
        data = {"root": str(folder), "train": train, "held_out": 4}
        return prepare(make_config(folder, data=data))

    one, several = prepared("all"), prepared(["news", "web.tsv", "more"])
    assert several.subwords.content() == one.subwords.content()
    assert len(several.train) == len(one.train) > 60
    for side in ("source", "target"):
        first, second = getattr(one.train, side), getattr(several.train, side)
        assert first.lengths.tolist() == second.lengths.tolist()
    # Pairs are held out of all texts.
    assert several.dev_split.text == one.dev_split.text and len(one.dev_split.text[0]) == 4
    names = [path.rpartition("/")[2] for path in several.facts["files"]["train"]]
    assert names == ["news.en", "news.de", "web.tsv", "more.en.gz", "more.de.gz"]
    for key in ("pairs", "source", "target", "dropped", "overlap"):
        assert several.facts[key] == one.facts[key]


def test_each_text_is_checked_by_itself(folder):
    """Though the lengths of all of them together are equal."""
    write(folder / "a.en", ["x"] * 3)
    write(folder / "a.de", ["x"] * 2)
    write(folder / "b.en", ["x"] * 2)
    write(folder / "b.de", ["x"] * 3)
    with pytest.raises(UserError, match=r"3 lines in \S+a\.en\n +2 lines in \S+a\.de\nDo not"):
        open_corpus(data_config(folder, train=["news", "a", "b"]))
    write_pairs(folder, "empty", [])
    with pytest.raises(UserError, match=r"data\.train: \S+empty\.en is empty"):
        open_corpus(data_config(folder, train=["news", "empty"]))
    with pytest.raises(UsageError, match=r"data\.train: there is no file nothing\.en "):
        open_corpus(data_config(folder, train=["news", "nothing"]))


# ---- In a recipe, and on the command line ----


@pytest.fixture
def recipe(folder):
    path = folder / "recipe.yaml"
    path.write_text(config_file.dump(make_config(folder, data={"root": str(folder)})))
    return path


@pytest.mark.parametrize("text", ["[]", "[a, 1]", "[a, [b]]", "[a, '']", "[null]"])
def test_wrong_lists(recipe, text):
    with pytest.raises(UsageError, match=r"data\.train(?s:.*)expected text, or a list of texts"):
        config_file.load(recipe, [f"data.train={text}"])
