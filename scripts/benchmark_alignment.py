"""What guided attention does: trains the same small model without it, guided to the diagonal, and
guided by true alignments, on a language pair whose alignments are known.

    .venv/bin/python scripts/benchmark_alignment.py > results.md

Both languages are invented: the words of one for those of the other, and a few rules, so that the
alignment of every pair follows from how it was made.

- An adjective stands before its noun in the source, and behind it in the target; a preposition
  becomes a postposition.
- The verb goes from between subject and object to behind the object. Some verbs are two words in
  the source, of which the second stands behind the object.
- Some nouns are two words in the target.
- The source has articles, which are linked to nothing. The target marks the object by a word of its
  own, which may be linked to any of the object's words (possible links).

Each model is trained by the verb `train` with the recipe (--config), on the same text with the same
seed. Then `evaluate` translates the test set, and `align --reference` reads its true translations,
of which it asks the head that was guided by alignments, or else, as ever, all heads of the last
layer but one. Results go to stdout as Markdown. It takes some minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarking import ROOT, exit_code, program, table

SIZES = {"train": 4000, "dev": 100, "test": 500}
VOCAB_SIZE = 400  # so that most words are several subwords
HEADER = ["", "BLEU", "AER", "precision", "recall", "seconds of training"]
LEXICON = {"noun": 80, "adjective": 40, "verb": 40, "preposition": 10, "adverb": 15, "joint": 5}
ARTICLES = ("ta", "mo")
OBJECT = "ke"
# What is laid over the recipe for each model.
MODELS = {
    "not guided": ["by=null"],
    "by: diagonal": ["by=diagonal"],
    "by: alignment": ["by=alignment", "alignments={folder}/train.links"],
}


def main() -> None:
    options = parse()
    with contextlib.ExitStack() as stack:
        folder = options.output
        if folder is None:
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark_alignment-"))
            folder = Path(name)
        folder = folder.resolve()
        make_corpus(folder, options.seed)
        lines = []
        for name, settings in MODELS.items():
            model = folder / re.sub(r"\W+", "_", name)
            guided = [f"guided_attention.{each.format(folder=folder)}" for each in settings]
            started = time.perf_counter()
            train(options, folder, model, guided)
            seconds = time.perf_counter() - started
            scores = [f"{score:.2f}" for score in measure(folder, model)]
            lines.append([name, *scores, f"{seconds:.0f}"])
    print(f"`{options.config.name}`, {options.steps:,} steps, {SIZES['train']:,} pairs\n")
    print(table(HEADER, lines))


def train(options: argparse.Namespace, folder: Path, model: Path, guided: list[str]) -> None:
    program(
        "train",
        options.config.resolve(),
        f"model_dir={model}",
        f"data.root={folder}",
        "data.source_lang=src",
        "data.target_lang=tgt",
        f"data.cache={folder}/cache",
        f"subword.vocab_size={VOCAB_SIZE}",
        f"training.max_steps={options.steps}",
        f"training.validate_every={options.steps}",
        f"training.save_every={options.steps}",
        f"training.seed={options.seed}",
        "evaluation.samples=0",
        "--restart",
        *guided,
        *options.overrides,
    )


def measure(folder: Path, model: Path) -> tuple[float, ...]:
    """BLEU, and the scores of alignments."""
    source, target = folder / "test.src", folder / "test.tgt"
    found = program("evaluate", model, "--source", source, "--reference", target)
    scores = program(
        *("align", model, "--source", source, "--target", target),
        *("--reference", folder / "test.links"),
    )
    pattern = r"AER ([\d.]+) +precision ([\d.]+) +recall ([\d.]+)"
    return tuple(
        float(number)
        for text, wanted in ((found, r"BLEU ([\d.]+)"), (scores, pattern))
        for number in re.search(wanted, text).groups()
    )


# -------------------------------------------------------------------------------- the languages


@dataclass
class Phrase:
    """A pair of phrases: words of both sides, and links between them, by their places."""

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    sure: list[tuple[int, int]] = field(default_factory=list)
    possible: list[tuple[int, int]] = field(default_factory=list)


def word(source: str, *target: str) -> Phrase:
    """A word, and those that it becomes."""
    links = [(0, place) for place in range(len(target))]
    return Phrase([source], list(target), links)


def joined(parts: list[Phrase], order: list[int]) -> Phrase:
    """Phrases one after another in the source, and in the target in an order of their own."""
    whole = Phrase()
    source_start, target_start = {}, {}
    for number, part in enumerate(parts):
        source_start[number] = len(whole.source)
        whole.source += part.source
    for number in order:
        target_start[number] = len(whole.target)
        whole.target += parts[number].target
    for number, part in enumerate(parts):
        for own, links in ((whole.sure, part.sure), (whole.possible, part.possible)):
            own += [(i + source_start[number], j + target_start[number]) for i, j in links]
    return whole


class Languages:
    """Draws sentences with their translations and links."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        taken = {*ARTICLES, OBJECT}
        self.lexicon = {
            kind: [self.entry(kind, taken) for _ in range(count)] for kind, count in LEXICON.items()
        }

    def entry(self, kind: str, taken: set[str]) -> tuple[list[str], list[str]]:
        """A word and its translation: two words each at the most."""
        two_sources = kind == "verb" and self.random.random() < 0.25
        two_targets = kind == "noun" and self.random.random() < 0.25
        return (
            [self.invented(taken) for _ in range(1 + two_sources)],
            [self.invented(taken) for _ in range(1 + two_targets)],
        )

    def invented(self, taken: set[str]) -> str:
        """A word that is not there yet."""
        while True:
            syllables = self.random.choices((2, 3), (2, 1))[0]
            text = "".join(
                self.random.choice("bdfgklmnprstvz") + self.random.choice("aeiou")
                for _ in range(syllables)
            ) + self.random.choice(("", "n", "s", "r"))
            if text not in taken:
                taken.add(text)
                return text

    def draw(self, kind: str) -> tuple[list[str], list[str]]:
        return self.random.choice(self.lexicon[kind])

    def noun_phrase(self) -> Phrase:
        (noun,), target = self.draw("noun")
        parts = [Phrase([self.random.choice(ARTICLES)])]
        for _ in range(self.random.choices((0, 1, 2), (3, 3, 1))[0]):
            adjective, translation = self.draw("adjective")
            parts.append(word(adjective[0], *translation))
        parts.append(word(noun, *target))
        return joined(parts, [len(parts) - 1, *range(len(parts) - 1)])

    def object_phrase(self) -> Phrase:
        phrase = self.noun_phrase()
        phrase.possible += [(i, len(phrase.target)) for i in range(len(phrase.source))]
        phrase.target.append(OBJECT)
        return phrase

    def place(self) -> Phrase:
        preposition, translation = self.draw("preposition")
        return joined([word(preposition[0], *translation), self.noun_phrase()], [1, 0])

    def clause(self) -> Phrase:
        verb, (target,) = self.draw("verb")
        parts = [self.noun_phrase(), word(verb[0], target), self.object_phrase()]
        order = [0, 2, 1]
        if len(verb) == 2:
            parts.append(Phrase([verb[1]]))
        if self.random.random() < 0.5:
            order.append(len(parts))
            parts.append(self.place())
        if self.random.random() < 0.4:
            order.append(len(parts))
            adverb, translation = self.draw("adverb")
            parts.append(word(adverb[0], *translation))
        whole = joined(parts, order)
        if len(verb) == 2:  # linked to the same word as the verb's first
            particle = sum(len(part.source) for part in parts[:3])
            whole.sure.append((particle, whole.target.index(target)))
        return whole

    def sentence(self) -> Phrase:
        parts = [self.clause()]
        if self.random.random() < 0.4:
            joint, translation = self.draw("joint")
            parts += [word(joint[0], *translation), self.clause()]
        return joined(parts, list(range(len(parts))))


def make_corpus(folder: Path, seed: int) -> None:
    """Writes SPLIT.src, SPLIT.tgt and SPLIT.links; all pairs are different. The links to train by
    are the sure ones."""
    languages, seen = Languages(seed), set()
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        lines: dict[str, list[str]] = {"src": [], "tgt": [], "links": []}
        while len(lines["src"]) < size:
            phrase = languages.sentence()
            source = " ".join(phrase.source)
            if source in seen:
                continue
            seen.add(source)
            links = [f"{i}-{j}" for i, j in sorted(phrase.sure)]
            if split != "train":
                links += [f"{i}?{j}" for i, j in sorted(phrase.possible)]
            lines["src"].append(source)
            lines["tgt"].append(" ".join(phrase.target))
            lines["links"].append(" ".join(links))
        for ending, text in lines.items():
            content = "".join(f"{line}\n" for line in text)
            (folder / f"{split}.{ending}").write_text(content, encoding="utf-8", newline="\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=ROOT / "configs" / "guided_attention.yaml",
        help="the recipe (configs/guided_attention.yaml)",
    )
    parser.add_argument("--steps", metavar="N", type=int, default=600, help="of training (600)")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="of text and model (1)")
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, help="keep text and models here (they are removed)"
    )
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="over the recipe's")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
