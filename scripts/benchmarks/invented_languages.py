"""A pair of invented languages whose word alignments are known.

The alignment of every pair of sentences follows from how it is made:

- An adjective stands before its noun in the source, and behind it in the target. A preposition
  becomes a postposition.
- The verb stands between subject and object in the source, and behind the object in the target.
  Some verbs are two words in the source, of which the second stands behind the object.
- Some nouns are two words in the target.
- The source has articles, which are linked to nothing. The target marks the object with a word of
  its own, which may be linked to any of the object's words (possible links).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

SIZES = {"train": 4000, "dev": 100, "test": 500}
LEXICON = {"noun": 80, "adjective": 40, "verb": 40, "preposition": 10, "adverb": 15, "joint": 5}
ARTICLES = ("ta", "mo")
OBJECT = "ke"


@dataclass(eq=False)
class Word:
    """A word of a sentence. A target word knows the source words that it is linked to."""

    text: str
    sure: list[Word] = field(default_factory=list)
    possible: list[Word] = field(default_factory=list)


@dataclass
class Phrase:
    """The source words of a phrase, and the target words of its translation."""

    source: list[Word]
    target: list[Word]

    def links(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The sure and the possible links, sorted pairs (source word, target word) from 0."""
        place = {word: i for i, word in enumerate(self.source)}
        sure = [(place[word], j) for j, own in enumerate(self.target) for word in own.sure]
        possible = [(place[word], j) for j, own in enumerate(self.target) for word in own.possible]
        return sorted(sure), sorted(possible)


def phrase(source: list[Phrase], target: list[Phrase] | None = None) -> Phrase:
    """Joins phrases; `target` has them in the order of the target, if that is another one."""
    return Phrase(
        [word for part in source for word in part.source],
        [word for part in target or source for word in part.target],
    )


class Languages:
    """Draws sentences with their translations and links."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        taken = {*ARTICLES, OBJECT}
        self.lexicon = {
            kind: [self.entry(kind, taken) for _ in range(count)] for kind, count in LEXICON.items()
        }

    def entry(self, kind: str, taken: set[str]) -> tuple[list[str], list[str]]:
        """A new word and its translation, which have at most two words each."""
        sources = 1 + (kind == "verb" and self.random.random() < 0.25)
        targets = 1 + (kind == "noun" and self.random.random() < 0.25)
        source = [self.invented(taken) for _ in range(sources)]
        return source, [self.invented(taken) for _ in range(targets)]

    def invented(self, taken: set[str]) -> str:
        """A word that is not in `taken`, to which it is added."""
        while True:
            (syllables,) = self.random.choices((2, 3), (2, 1))
            text = "".join(
                self.random.choice("bdfgklmnprstvz") + self.random.choice("aeiou")
                for _ in range(syllables)
            ) + self.random.choice(("", "n", "s", "r"))
            if text not in taken:
                taken.add(text)
                return text

    def draw(self, kind: str) -> tuple[list[str], list[str]]:
        return self.random.choice(self.lexicon[kind])

    def word(self, kind: str) -> Phrase:
        """A word of the lexicon; each word of its translation is linked to all of its words."""
        texts, translations = self.draw(kind)
        source = [Word(text) for text in texts]
        return Phrase(source, [Word(text, sure=source) for text in translations])

    def noun_phrase(self) -> Phrase:
        noun = self.word("noun")
        article = Phrase([Word(self.random.choice(ARTICLES))], [])
        (count,) = self.random.choices((0, 1, 2), (3, 3, 1))
        adjectives = [self.word("adjective") for _ in range(count)]
        return phrase([article, *adjectives, noun], [noun, *adjectives])

    def clause(self) -> Phrase:
        verb = self.word("verb")
        first, second = (Phrase(part, []) for part in (verb.source[:1], verb.source[1:]))
        subject, object_ = self.noun_phrase(), self.noun_phrase()
        object_.target.append(Word(OBJECT, possible=object_.source))
        rest = []
        if self.random.random() < 0.5:
            preposition, noun_phrase = self.word("preposition"), self.noun_phrase()
            rest.append(phrase([preposition, noun_phrase], [noun_phrase, preposition]))
        if self.random.random() < 0.4:
            rest.append(self.word("adverb"))
        source = [subject, first, object_, second, *rest]
        return phrase(source, [subject, object_, verb, *rest])

    def sentence(self) -> Phrase:
        clause = self.clause()
        if self.random.random() < 0.4:
            return phrase([clause, self.word("joint"), self.clause()])
        return clause


def make_corpus(folder: Path, seed: int) -> None:
    """Writes SPLIT.src, SPLIT.tgt and SPLIT.links for each split of SIZES.

    All pairs are different. The links of the training text, which models learn from, are the sure
    links only.
    """
    languages, seen = Languages(seed), set()
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        lines: dict[str, list[str]] = {"src": [], "tgt": [], "links": []}
        while len(lines["src"]) < size:
            sentence = languages.sentence()
            source, target = (
                " ".join(word.text for word in words)
                for words in (sentence.source, sentence.target)
            )
            if source in seen:
                continue
            seen.add(source)
            sure, possible = sentence.links()
            links = [f"{i}-{j}" for i, j in sure]
            if split != "train":
                links += [f"{i}?{j}" for i, j in possible]
            lines["src"].append(source)
            lines["tgt"].append(target)
            lines["links"].append(" ".join(links))
        for ending, text in lines.items():
            content = "".join(f"{line}\n" for line in text)
            (folder / f"{split}.{ending}").write_text(content, encoding="utf-8", newline="\n")
