"""The benchmark of alignments knows the alignments of its corpus."""

import pytest

from benchmarks import invented_languages as benchmark
from transformer_mt.scoring.alignment_error_rate import read_gold


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    benchmark.make_corpus(folder, 3)
    return folder


def lines(folder, name):
    return [line.split() for line in (folder / name).read_text().split("\n")[:-1]]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_links_are_the_dictionarys(corpus, split):
    """Every link joins a word and its translation, and every word that has a translation is linked.
    The other words are the articles and the mark of the object."""
    entries = [entry for kind in benchmark.Languages(3).lexicon.values() for entry in kind]
    translations = {word: set(target) for source, target in entries for word in source}
    assert len(translations) == sum(len(source) for source, _ in entries)
    text = list(zip(lines(corpus, f"{split}.src"), lines(corpus, f"{split}.tgt"), strict=True))
    gold = read_gold(corpus / f"{split}.links")
    assert len(text) == len(gold) == benchmark.SIZES[split]
    for (source, target), (sure, possible) in zip(text, gold, strict=True):
        assert all(target[j] in translations[source[i]] for i, j in sure)
        linked = {i for i, _ in sure}
        assert {source[i] for i in set(range(len(source))) - linked} <= set(benchmark.ARTICLES)
        linked = {j for _, j in sure}
        assert {target[j] for j in set(range(len(target))) - linked} == {benchmark.OBJECT}
        assert all(target[j] == benchmark.OBJECT for _, j in possible - sure)
        assert (possible == sure) == (split == "train")


def test_a_sentence_by_hand():
    """Two words become one, one becomes two; adjective, verb and preposition change places."""
    languages = benchmark.Languages(1)
    nouns = iter([(["house"], ["HO", "USE"]), (["dog"], ["DOG"]), (["sea"], ["SEA"])])
    others = {
        "verb": (["looks", "up"], ["FINDS"]),
        "adjective": (["old"], ["OLD"]),
        "preposition": (["at"], ["AT"]),
    }
    languages.draw = lambda kind: next(nouns) if kind == "noun" else others[kind]
    counts = iter([1, 0, 0])  # adjectives of each noun phrase
    chances = iter([0.0, 1.0])  # a place, but no adverb

    class Chosen:
        def choices(self, *arguments):
            return [next(counts)]

        def choice(self, some):
            return some[0]

        def random(self):
            return next(chances)

    languages.random = Chosen()
    clause = languages.clause()
    assert " ".join(word.text for word in clause.source) == "ta old house looks ta dog up at ta sea"
    assert " ".join(word.text for word in clause.target) == "HO USE OLD DOG ke FINDS SEA AT"
    sure, possible = clause.links()
    assert sure == [
        *((1, 2), (2, 0), (2, 1), (3, 5), (5, 3)),
        *((6, 5), (7, 7), (9, 6)),
    ]
    assert possible == [(4, 4), (5, 4)]


def test_the_same_seed_makes_the_same_text(corpus, tmp_path):
    benchmark.make_corpus(tmp_path, 3)
    for path in corpus.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    train = (corpus / "train.src").read_text().split("\n")
    assert len(set(train)) == len(train)
    benchmark.make_corpus(tmp_path, 4)
    assert (corpus / "train.src").read_bytes() != (tmp_path / "train.src").read_bytes()
