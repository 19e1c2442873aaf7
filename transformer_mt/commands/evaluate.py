"""The command `evaluate`.

Give either a model and --source, or --hypothesis, a file of translations. A model translates the
source, and its translations are scored. Several models translate one after another, and are
compared in a table. The scores are those of sacreBLEU, with its signatures. For models, the
speed in lines per second is shown too.

examples:
  python -m transformer_mt evaluate runs/demo --source test.en --reference test.de
  python -m transformer_mt evaluate runs/a runs/b --source test.en --reference test.de
  python -m transformer_mt evaluate --hypothesis out.de --reference test.de
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_mt.assembly.backends import with_decoding
from transformer_mt.commands.arguments import add_files, require_files
from transformer_mt.commands.line_files import require_equal
from transformer_mt.commands.model_choice import add_model_choice, find_engine, translating
from transformer_mt.config.schema import DecodingConfig
from transformer_mt.decoding.stream import input_lines
from transformer_mt.evaluation.metrics import METRICS, Scores, score
from transformer_mt.evaluation.scoring import score_for, tokenizer_for_text
from transformer_mt.runtime.console import table
from transformer_mt.runtime.errors import UsageError
from transformer_mt.runtime.files import atomic, lines, require_distinct, write_atomically


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_dirs",
        metavar="MODEL_DIR",
        nargs="*",
        help="a model directory or an export that translates --source; several are compared",
    )
    add_files(
        parser,
        required=("reference",),
        source="the text that MODEL_DIR translates",
        hypothesis="translations to score, instead of those of a model",
        reference="the reference translations, one for each line of the source or hypothesis",
        output="writes the translations of MODEL_DIR to this file",
        json="also writes the scores to this file, as JSON; those of several models are a list",
    )
    settings = [name for name in DecodingConfig.model_fields if name != "n_best"]
    add_model_choice(parser, settings)


def run(options: argparse.Namespace) -> None:
    if bool(options.model_dirs) == (options.hypothesis is not None):
        raise UsageError("evaluate: give either MODEL_DIR with --source, or --hypothesis")
    if bool(options.model_dirs) != (options.source is not None):
        raise UsageError("evaluate: MODEL_DIR and --source belong together")
    if options.hypothesis and options.output:
        raise UsageError("evaluate: --output is for what MODEL_DIR translates")
    require_files(options, "source", "hypothesis", "reference")
    require_distinct(
        {"--output": options.output, "--json": options.json},
        {f"--{name}": getattr(options, name) for name in ("source", "hypothesis", "reference")},
    )
    if options.hypothesis:
        results = [score_file(options.hypothesis, options.reference)]
    else:
        results = score_models(options)
    print(results[0] if len(results) == 1 else as_table(results))
    if options.json:
        values = [result.as_dict() for result in results]
        text = json.dumps(values[0] if len(values) == 1 else values, indent=2)
        write_atomically(options.json, f"{text}\n")


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model's translations, and the seconds that translating took, without the time
    to load the model."""

    model: str
    scores: Scores
    seconds: float

    @property
    def lines_per_second(self) -> float:
        return self.scores.lines / max(1e-9, self.seconds)

    def as_dict(self) -> dict[str, Any]:
        speed = {"seconds": self.seconds, "lines_per_second": self.lines_per_second}
        return {"model": self.model, **self.scores.as_dict(), **speed}

    def __str__(self) -> str:
        return (
            f"{self.scores}\n"
            f"  {self.lines_per_second:,.1f} lines/s: {self.seconds:.1f} s, the model being loaded"
        )


def score_file(hypothesis: Path, reference: Path) -> Scores:
    """Scores a file of translations. Chinese is recognised, and tokenised accordingly."""
    references = list(lines(reference))
    return score(list(input_lines(hypothesis)), [references], tokenizer_for_text(references))


def score_models(options: argparse.Namespace) -> list[Evaluation]:
    """Translates --source with each of the models, writes that to --output, and scores it.

    Raises:
        UsageError: there are several models, and they can't all do what is asked for.
        UserError: anything wrong with a model directory or the files.
    """
    if options.output and len(options.model_dirs) > 1:
        raise UsageError("evaluate: --output is for what one MODEL_DIR translates")
    if options.ensemble and len(options.model_dirs) > 1:
        raise UsageError("evaluate: --ensemble goes together with one MODEL_DIR")
    one_best = {"n_best": 1}
    specs = [with_decoding(find_engine(options, path), one_best) for path in options.model_dirs]
    sources = list(input_lines(options.source))
    references = list(lines(options.reference))
    require_equal(options.source, len(sources), options.reference, len(references))
    evaluations = []
    for model_dir, spec in zip(options.model_dirs, specs, strict=True):
        with translating(spec, "translating", len(sources)) as (translator, bar):
            translator.warm_up(spec.processes)
            started = time.perf_counter()
            hypotheses = translator.translate(sources, bar.update)
            seconds = time.perf_counter() - started
        if options.output:
            with atomic(options.output) as file:
                file.writelines(f"{hypothesis}\n" for hypothesis in hypotheses)
        scores = score_for(spec.config, hypotheses, references)
        evaluations.append(Evaluation(model_dir, scores, seconds))
    return evaluations


def as_table(evaluations: list[Evaluation]) -> str:
    """Several models side by side, and the signatures of their scores."""
    keys = list(evaluations[0].scores.values)
    rows = [("", *(METRICS[key].label for key in keys), "length ratio", "lines/s")]
    notes: dict[str, None] = {}
    for one in evaluations:
        scores = one.scores
        rows.append(
            (
                one.model,
                *(f"{scores.values[key]:.2f}" for key in keys),
                f"{scores.length_ratio:.3f}",
                f"{one.lines_per_second:,.1f}",
            )
        )
        notes |= dict.fromkeys(scores.notes())
    return "\n".join([*table(rows), *(f"  {note}" for note in notes)])
