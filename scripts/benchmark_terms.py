"""How well a model follows a list of terms, with and without being given it.

    .venv/bin/python scripts/benchmark_terms.py MODEL --text PREFIX --test PREFIX > results.md

MODEL is a model directory, or one of its checkpoints as MODEL_DIR:NAME. The sides of a text are
PREFIX.en and PREFIX.de, with the languages of the model. The list is made of the training text
(data/term_extraction.py): groups of up to three words, and the groups in the translations
that nearly always come together with them. Those remain that the test set has, and whose
translation most of its references have. Then `evaluate --terms` translates the test set without
the list and with it, in each way that the model has. Results go to stdout as Markdown, progress to
stderr.

How to read the results

The references choose the terms, so the list is better than one that knows nothing of the test set.
The last line of the table is what the references themselves have of the terms. Seconds are those of
a line, without loading the model.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import harness
from benchmarks.harness import Failure, WrongArguments, cores, positive, read_lines

if TYPE_CHECKING:
    from transformer_mt.config.text import DataConfig

HEADER = ["", "terms exact, %", "by stem, %", "BLEU", "chrF", "seconds a line"]
# The two sides of a term are in at least so many lines, with this coefficient of Dice.
LEAST_LINES = 10
LEAST_DICE = 0.75
# The share of the lines of the test set with a term whose references must have its translation.
LEAST_SHARE = 0.5
# How many terms are shown as examples.
EXAMPLES = 20

Pairs = list[tuple[str, str]]


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    from transformer_mt.data.term_extraction import extracted

    model, data = model_of(options.model)
    languages = data.source_lang, data.target_lang
    text = [pair for prefix in options.text for pair in pairs_of(prefix, languages)]
    test = pairs_of(options.test, languages)[: options.lines]
    least = {"least_lines": LEAST_LINES, "least_dice": LEAST_DICE}
    terms = kept(extracted(text, languages, **least, seed=options.seed), test, languages)
    if not terms:
        raise Failure("no term of the training text is in the test set")
    terms_file = options.output.resolve() if options.output else folder / "terms.tsv"
    terms_file.write_text("".join(f"{source}\t{target}\n" for source, target in terms), "utf-8")
    source, reference = (folder / name for name in ("source", "reference"))
    for file, lines in zip((source, reference), zip(*test, strict=True), strict=True):
        file.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    settings = "--terms", terms_file, "--threads", options.threads
    ways = {"without the list": [], "by the search": ["--follow-terms", "--terms-by", "search"]}
    if data.annotate_terms:
        ways["by annotation"] = ["--follow-terms", "--terms-by", "annotation"]
        ways["both ways"] = ["--follow-terms"]
    rows = []
    for name, flags in ways.items():
        (scores,) = harness.evaluate(folder, [model], source, reference, *settings, *flags)
        bleu, chrf = (f"{scores[key]:.2f}" for key in ("bleu", "chrf"))
        rows.append([name, *cells(scores), bleu, chrf, f"{scores['seconds'] / len(test):.3f}"])
    flags = "--target-lang", languages[1], "--source-lang", languages[0], *settings[:2]
    scores = of_file(folder, source, reference, *flags)
    rows.append(["references", *cells(scores), "", "", ""])
    found = scores["terms"]
    shown = ", ".join(f"{source} → {target}" for source, target in sorted(terms)[:EXAMPLES])
    yield (
        f"{len(terms):,} terms, {found['terms']:,} times in {found['lines']:,} of {len(test):,} "
        f"lines of the test set: {shown}{', ...' if len(terms) > EXAMPLES else ''}"
    )
    yield harness.table(HEADER, rows)
    yield harness.machine("paddlepaddle")


def model_of(name: str) -> tuple[str, DataConfig]:
    """A model with its absolute path, and what it was trained on."""
    from transformer_mt.export.registry import split_model
    from transformer_mt.model_directory import ModelDirectory
    from transformer_mt.utils.errors import UserError

    folder, checkpoint = split_model(name)
    try:
        data = ModelDirectory(Path(folder)).load_config().data
    except UserError as error:
        raise WrongArguments(str(error)) from None
    path = str(Path(folder).resolve())
    return f"{path}:{checkpoint}" if checkpoint else path, data


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


def kept(found: Pairs, test: Pairs, languages: tuple[str, str]) -> Pairs:
    """The terms that the sources of a test set have, and whose translation most of the references
    of these lines have."""
    from transformer_mt.data.terms import Term, Terms, has_form

    terms = Terms((Term(source, (target,)) for source, target in found), languages[0])
    right = defaultdict(list)
    for source, reference in test:
        for term in dict.fromkeys(own.term for own in terms.find(source)):
            right[term].append(has_form(term, reference, languages[1]))
    return sorted(
        (term.source, term.forms[0])
        for term, lines in right.items()
        if sum(lines) > LEAST_SHARE * len(lines)
    )


def of_file(folder: Path, source: Path, reference: Path, *flags: object) -> dict[str, Any]:
    """The scores of the references themselves."""
    json_file = folder / "references.json"
    files = "--hypothesis", reference, "--source", source, "--reference", reference
    harness.program("evaluate", *files, "--json", json_file, *flags)
    return json.loads(json_file.read_text("utf-8"))


def cells(scores: dict[str, Any]) -> list[str]:
    """The accuracies by the counts of `evaluate --json`, with half the width of their intervals."""
    found = scores["terms"]
    shown = []
    for key in ("terms", "terms_by_stem"):
        value, ends = found["accuracies"].get(key), found["intervals"].get(key)
        shown.append("" if ends is None else f"{value:.1f} ± {(ends[1] - ends[0]) / 2:.1f}")
    return shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL_DIR[:NAME]", help="the model that translates")
    prefix = {"metavar": "PREFIX", "type": Path, "required": True}
    parser.add_argument("--text", nargs="+", **prefix, help="the training text")
    parser.add_argument("--test", **prefix, help="the test set")
    number = {"metavar": "N", "type": positive(int)}
    parser.add_argument("--lines", **number, help="only the first N lines of the test set (all)")
    parser.add_argument("--threads", **number, default=cores(), help="CPU cores to use (all)")
    seed = {"metavar": "N", "type": int, "default": 1}
    parser.add_argument("--seed", **seed, help="seed of the lines that are read (1)")
    output = {"metavar": "FILE", "type": Path}
    parser.add_argument("--output", **output, help="write the list of terms there (not kept)")


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)
