"""What survives of localisers' texts: protected parts, numbers, text as people type it, terms.

    .venv/bin/python scripts/benchmark_localisation.py MODEL [MODEL ...] --text PREFIX --test PREFIX

MODEL is a model directory, or one of its checkpoints as MODEL_DIR:NAME. The sides of a text are
PREFIX.en and PREFIX.de, with the languages of the models. Every table is the work of `evaluate`, so
its BLEU and chrF are sacreBLEU's. Results go to stdout as Markdown, progress to stderr.

1. The test set with and without protection. A model that was trained without data.protect is given
   --protect, so it has the ways of models without symbols. Of the lines that have protected parts,
   or numbers outside of these, it is counted how many keep all of them (see `decoding.checks`).
2. The lines without protected parts, changed as data.input_noise changes them: all of them in one
   way for each row.
3. The test set with a list of terms, with and without being given it. The list is made of the
   training text (data/term_extraction.py): groups of words, and the groups in the translations that
   nearly always come together with them. Those remain that the test set has, and whose translation
   most of its references have. In the list of "wrong" terms, each translation is that of another
   term, so no model has learnt it, and only the share of terms that are followed means something.

How to read the results

The references choose the terms, so the list is better than one that knows nothing of the test set.
The last line of a table of terms is what the references themselves have of them. Seconds are those
of a line, without loading the model.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.harness import Failure, WrongArguments, cores, positive, read_lines

if TYPE_CHECKING:
    from transformer_mt.config.text import DataConfig

# The two sides of a term are in at least so many lines, with this coefficient of Dice.
LEAST_LINES = 10
LEAST_DICE = 0.75
# The share of the lines of the test set with a term whose references must have its translation.
LEAST_SHARE = 0.5
# How many terms are shown as examples.
EXAMPLES = 20

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Model:
    """A model that is measured.

    Attributes:
        name: as it is given.
        path: the same with an absolute path.
        data: what it was trained on.
    """

    name: str
    path: str
    data: DataConfig

    @property
    def languages(self) -> tuple[str, str]:
        return self.data.source_lang, self.data.target_lang


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    models = [model_of(name) for name in options.models]
    languages = models[0].languages
    if any(model.languages != languages for model in models):
        raise WrongArguments("the models translate different languages")
    test = pairs_of(options.test, languages)[: options.lines]
    text = [pair for prefix in options.text for pair in pairs_of(prefix, languages)]
    translate = Evaluation(folder, options.threads)
    yield from protected_parts(models, test, translate)
    yield from changed_text(models, test, translate)
    yield from terms(models, text, test, translate, options)
    yield harness.machine("paddlepaddle")


class Evaluation:
    """Translates and scores lines with `evaluate`.

    Args:
        folder: where it writes.
        threads: the number of threads.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        self._threads = threads

    def files(self, pairs: Pairs) -> tuple[Path, Path]:
        """Writes the sources and the references."""
        files = self.folder / "source", self.folder / "reference"
        for file, lines in zip(files, zip(*pairs, strict=True), strict=True):
            file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        return files

    def __call__(
        self, model: Model, pairs: Pairs, *flags: object
    ) -> tuple[dict[str, Any], list[str]]:
        """The scores and the translations of a model."""
        sentences = self.folder / "sentences.tsv"
        settings = "--threads", self._threads, "--sentences", sentences, *flags
        (scores,) = harness.evaluate(self.folder, [model.path], *self.files(pairs), *settings)
        with open(sentences, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return scores, [row["hypothesis"] for row in rows]


def shown(scores: dict[str, Any]) -> list[str]:
    return [f"{scores[key]:.2f}" for key in ("bleu", "chrf")]


# ---- 1. Protected parts and numbers ----


def protected_parts(models: list[Model], test: Pairs, translate: Evaluation) -> Iterator[str]:
    rows = []
    for model in models:
        for name, flags in protections(model):
            scores, translations = translate(model, test, *flags)
            counts = whole_lines(model, test, translations)
            cells = [f"{whole} of {count}" for whole, count in counts]
            seconds = f"{scores['seconds'] / len(test):.3f}"
            rows.append([f"{model.name}, {name}", *cells, *shown(scores), seconds])
    header = ["", "lines with all parts", "with all numbers", "BLEU", "chrF", "seconds a line"]
    yield harness.table(header, rows)


def protections(model: Model) -> list[tuple[str, list[str]]]:
    """The ways in which a model translates, and their flags."""
    if model.data.protect:
        return [("protected", []), ("not protected", ["--protect", ""])]
    from transformer_mt.config.text import PROTECTED_IN_DOCUMENTS

    classes = ",".join(PROTECTED_IN_DOCUMENTS)
    return [("not protected", []), ("protected", ["--protect", classes])]


def whole_lines(model: Model, test: Pairs, translations: list[str]) -> Iterator[tuple[int, int]]:
    """How many lines keep all of their protected parts, and how many have some; then the same of
    numbers."""
    from transformer_mt.config.text import PROTECTED_IN_DOCUMENTS
    from transformer_mt.data.spans import SpanFinder
    from transformer_mt.decoding.checks import warnings_of

    finder = SpanFinder(PROTECTED_IN_DOCUMENTS)
    kinds = []
    for (source, _), translation in zip(test, translations, strict=True):
        warnings = warnings_of(source, translation, finder, *model.languages)
        spans = finder.find(source)
        outside = list(source)
        for span in reversed(spans):
            outside[span.start : span.end] = " "
        has = {"span": bool(spans), "number": any(map(str.isdigit, outside))}
        kinds.append((has, {warning.kind for warning in warnings}))
    for kind in ("span", "number"):
        own = [found for has, found in kinds if has[kind]]
        yield sum(not found & {kind, "empty"} for found in own), len(own)


# ---- 2. Text as people type it ----


def changed_text(models: list[Model], test: Pairs, translate: Evaluation) -> Iterator[str]:
    from transformer_mt.config.text import PROTECTED_IN_DOCUMENTS
    from transformer_mt.data.input_noise import KINDS, changed
    from transformer_mt.data.spans import SpanFinder

    finder = SpanFinder(PROTECTED_IN_DOCUMENTS)
    plain = [pair for pair in test if not finder.find(pair[0]) and not finder.find(pair[1])]
    texts = {"as it is": plain}
    for kind in KINDS:
        draw = random.Random(1)
        texts[kind] = [changed(kind, *pair, draw) for pair in plain]
    rows = [
        [name, *(" / ".join(shown(translate(model, pairs)[0])) for model in models)]
        for name, pairs in texts.items()
    ]
    yield f"{len(plain):,} lines without protected parts; BLEU / chrF:"
    yield harness.table(["", *(model.name for model in models)], rows)


# ---- 3. Terms ----


def terms(
    models: list[Model],
    text: Pairs,
    test: Pairs,
    translate: Evaluation,
    options: argparse.Namespace,
) -> Iterator[str]:
    from transformer_mt.data.term_extraction import extracted

    languages = models[0].languages
    least = {"least_lines": LEAST_LINES, "least_dice": LEAST_DICE}
    found = kept(extracted(text, languages, **least, seed=options.seed), test, languages)
    if not found:
        raise Failure("no term of the training text is in the test set")
    sources, targets = zip(*found, strict=True)
    # Each translation moves on by the same number of places.
    wrong = list(zip(sources, [*targets[1:], targets[0]], strict=True))
    for name, own in (("terms", found), ("wrong terms", wrong)):
        own_file = translate.folder / "terms.tsv"
        if name == "terms" and options.output:
            own_file = options.output.resolve()
        own_file.write_text("".join(f"{source}\t{target}\n" for source, target in own), "utf-8")
        yield from with_terms(name, own, own_file, models, test, translate)


def with_terms(
    name: str, own: Pairs, own_file: Path, models: list[Model], test: Pairs, translate: Evaluation
) -> Iterator[str]:
    rows = []
    for model in models:
        for way, flags in ways(model).items():
            scores, _ = translate(model, test, "--terms", own_file, *flags)
            seconds = f"{scores['seconds'] / len(test):.3f}"
            rows.append([f"{model.name}, {way}", *accuracies(scores), *shown(scores), seconds])
    scores = of_references(translate, own_file, models[0].languages)
    rows.append(["references", *accuracies(scores), "", "", ""])
    counts = scores["terms"]
    examples = ", ".join(f"{source} → {target}" for source, target in own[:EXAMPLES])
    yield (
        f"{len(own):,} {name}, {counts['terms']:,} times in {counts['lines']:,} of {len(test):,} "
        f"lines of the test set: {examples}{', ...' if len(own) > EXAMPLES else ''}"
    )
    header = ["", f"{name} exact, %", "by stem, %", "BLEU", "chrF", "seconds a line"]
    yield harness.table(header, rows)


def ways(model: Model) -> dict[str, list[str]]:
    """The ways in which a model can follow terms, and their flags."""
    found = {"without the list": [], "by the search": ["--follow-terms", "--terms-by", "search"]}
    if model.data.annotate_terms:
        found["by annotation"] = ["--follow-terms", "--terms-by", "annotation"]
    return found


def kept(found: Pairs, test: Pairs, languages: tuple[str, str]) -> Pairs:
    """The terms that the sources of a test set have, and whose translation most of the references
    of these lines have."""
    from transformer_mt.data.terms import Term, Terms, has_form

    own = Terms((Term(source, (target,)) for source, target in found), languages[0])
    right = defaultdict(list)
    for source, reference in test:
        for term in dict.fromkeys(one.term for one in own.find(source)):
            right[term].append(has_form(term, reference, languages[1]))
    return sorted(
        (term.source, term.forms[0])
        for term, lines in right.items()
        if sum(lines) > LEAST_SHARE * len(lines)
    )


def of_references(
    translate: Evaluation, own_file: Path, languages: tuple[str, str]
) -> dict[str, Any]:
    """The scores of the references of the last evaluation."""
    source, reference = translate.folder / "source", translate.folder / "reference"
    json_file = translate.folder / "references.json"
    files = "--hypothesis", reference, "--source", source, "--reference", reference
    flags = "--target-lang", languages[1], "--source-lang", languages[0], "--terms", own_file
    harness.program("evaluate", *files, "--json", json_file, *flags)
    return json.loads(json_file.read_text("utf-8"))


def accuracies(scores: dict[str, Any]) -> list[str]:
    """The accuracies by the counts of `evaluate --json`, with half the width of their intervals."""
    found = scores["terms"]
    cells = []
    for key in ("terms", "terms_by_stem"):
        value, ends = found["accuracies"].get(key), found["intervals"].get(key)
        cells.append("" if ends is None else f"{value:.1f} ± {(ends[1] - ends[0]) / 2:.1f}")
    return cells


# ---- What is given ----


def model_of(name: str) -> Model:
    from transformer_mt.export.registry import split_model
    from transformer_mt.model_directory import ModelDirectory
    from transformer_mt.utils.errors import UserError

    folder, checkpoint = split_model(name)
    try:
        data = ModelDirectory(Path(folder)).load_config().data
    except UserError as error:
        raise WrongArguments(str(error)) from None
    path = str(Path(folder).resolve())
    return Model(Path(name).name, f"{path}:{checkpoint}" if checkpoint else path, data)


def pairs_of(prefix: Path, languages: tuple[str, str]) -> Pairs:
    """
    Raises:
        WrongArguments: a side is missing, or the two have different numbers of lines.
    """
    files = [prefix.parent / f"{prefix.name}.{language}" for language in languages]
    for file in files:
        if not file.is_file():
            raise WrongArguments(f"{file}: there is no such file")
    source, target = map(read_lines, files)
    if len(source) != len(target):
        raise WrongArguments(f"{files[0]} has {len(source)} lines, {files[1]} {len(target)}")
    return list(zip(source, target, strict=True))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    help = "the models that translate"
    parser.add_argument("models", metavar="MODEL_DIR[:NAME]", nargs="+", help=help)
    prefix = {"metavar": "PREFIX", "type": Path, "required": True}
    parser.add_argument("--text", nargs="+", **prefix, help="the training text")
    parser.add_argument("--test", **prefix, help="the test set")
    number = {"metavar": "N", "type": positive(int)}
    parser.add_argument("--lines", **number, help="only the first N lines of the test set (all)")
    parser.add_argument("--threads", **number, default=cores(), help="CPU cores to use (all)")
    seed = {"metavar": "N", "type": int, "default": 1}
    parser.add_argument("--seed", **seed, help="seed of the lines that terms are taken from (1)")
    output = {"metavar": "FILE", "type": Path}
    parser.add_argument("--output", **output, help="write the list of terms there (not kept)")


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)
