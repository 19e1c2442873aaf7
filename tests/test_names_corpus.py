"""The corpus of names and numbers is what its generator writes, and holds what it is for."""

import re
import subprocess
import sys

import pytest

from tests.support import ROOT

NAMES = ROOT / "data" / "names"
SIZES = {"train": 4000, "dev": 200, "test": 500}


def read(name):
    text = (NAMES / name).read_bytes().decode("utf-8")
    assert text.endswith("\n") and "\r" not in text
    return text[:-1].split("\n")


@pytest.fixture(scope="module")
def corpus():
    """``corpus[split]`` is the list of (English, German) pairs."""
    return {
        split: list(zip(read(f"{split}.en"), read(f"{split}.de"), strict=True)) for split in SIZES
    }


def names_and_numbers(german):
    """By hand: what follows Frau, Herr or Herrn, and the digits."""
    (name,) = re.findall(r"(?:Frau|Herrn?) (\S+)", german)
    (number,) = re.findall(r"\d+", german)
    return name, number


def test_files_are_what_the_generator_writes(tmp_path):
    subprocess.run(
        [sys.executable, str(NAMES / "generate.py"), "--output", str(tmp_path)], check=True
    )
    names = sorted(path.name for path in tmp_path.iterdir())
    texts = [f"{split}.{lang}" for split in SIZES for lang in ("en", "de")]
    assert names == sorted([*texts, "vocabulary"])
    for name in names:
        assert (tmp_path / name).read_bytes() == (NAMES / name).read_bytes(), name


def test_each_line_has_a_name_and_a_number_that_no_other_split_has(corpus):
    found = {}
    for split, pairs in corpus.items():
        assert len(pairs) == SIZES[split]
        found[split] = set()
        for english, german in pairs:
            for word in names_and_numbers(german):
                assert english.split().count(word) == german.split().count(word) == 1, german
                found[split].add(word)
    assert not found["train"] & (found["dev"] | found["test"])
    assert not found["dev"] & found["test"]


def test_an_english_sentence_has_one_translation(corpus):
    translations = {}
    for pairs in corpus.values():
        for english, german in pairs:
            assert translations.setdefault(english, german) == german
            assert re.fullmatch(r"[A-ZÄÖÜ][\wäöüß ,]* [.?]", german), german
