"""The command `compare`.

SYSTEM is a file of translations, one for each line of the reference, or a model that translates
--source: MODEL_DIR, or MODEL_DIR:CHECKPOINT. The first SYSTEM is the baseline, A, with which each
of the others, B, C and so on, is compared. The result says in a sentence whether a system is better
than A, by how much, and whether that may be chance. Below are the scores with intervals and
p-values, and where the systems differ.

The tests are sacreBLEU's paired bootstrap resampling and paired approximate randomisation, with
a fixed seed: the numbers equal those of sacreBLEU's own command, sacrebleu.

examples:
  python -m transformer_mt compare --reference test.de one.de two.de
  python -m transformer_mt compare --reference test.de --source test.en runs/a runs/b
  python -m transformer_mt compare --reference test.de --source test.en runs/a:step_500 runs/a \\
      --html comparison.html --json comparison.json
"""

import argparse
import os
import sys
from pathlib import Path

from transformer_mt.commands.arguments import (
    add_files,
    add_references,
    add_score_options,
    is_readable,
    require_files,
)
from transformer_mt.commands.line_files import require_equal
from transformer_mt.commands.model_choice import add_model_choice, find_model, translate
from transformer_mt.config.decoding import SEARCH_KEYS
from transformer_mt.decoding.lines import input_lines
from transformer_mt.export.registry import EngineSpec, split_model
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.reports.comparison import as_json, as_page, as_text
from transformer_mt.scoring.comparison import compare
from transformer_mt.scoring.groups import groupings
from transformer_mt.scoring.metrics import MANY_LINES, METRICS
from transformer_mt.scoring.significance import TESTS
from transformer_mt.scoring.tokenizers import (
    note_for,
    require_package_of,
    tokenizer_for,
    tokenizer_for_text,
)
from transformer_mt.utils.console import progress, say, warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import lines, write_atomically

# What sacreBLEU's bootstrap of chrF holds in memory: 1,000 samples of 18 numbers of 4 bytes.
BYTES_PER_LINE = 72_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "systems",
        metavar="SYSTEM",
        nargs="+",
        help="a file of translations, or MODEL_DIR[:CHECKPOINT]; the first one is the baseline",
    )
    add_references(parser)
    add_files(
        parser,
        source="the text that the systems translate; required if a SYSTEM is a model",
        html="also draws the comparison as an HTML page",
        json="also writes the comparison to this file, as JSON",
    )
    parser.add_argument(
        "--examples",
        metavar="N",
        type=int,
        default=5,
        help="shows N sentences that got better and N that got worse, those that changed most "
        "(default: 5)",
    )
    about = f"the metrics to compare, of {', '.join(METRICS)}. The first one decides"
    add_score_options(parser, tuple(METRICS), about, "the words of the reference are counted")
    add_model_choice(parser, [name for name in SEARCH_KEYS if name != "n_best"])


def run(options: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: an argument is wrong, or a file or model does not exist.
        UserError: the files have different numbers of lines, or something is wrong with a model.
    """
    names = _distinct(options.systems)
    models = _require_valid(options, names)
    references = [list(lines(path)) for path in options.reference]
    sources = list(input_lines(options.source)) if options.source else None
    translations = {name: list(input_lines(Path(name))) for name in names if name not in models}
    _require_as_many_lines(options, references, sources, translations)
    configs = [spec.config for spec in models.values()]
    tokenize = options.tokenize
    if tokenize is None:
        tokenize = tokenizer_for(configs[0]) if configs else tokenizer_for_text(references[0])
    metrics = list(dict.fromkeys(options.metrics))
    if "bleu" in metrics:
        require_package_of(tokenize)
    for name, spec in models.items():
        say(f"{name}: translating {len(sources):,} lines")
        translations[name], _ = translate(spec, sources)
    with progress(total=len(metrics) * len(TESTS), title="comparing", unit="tests") as bar:
        comparison = compare(
            [(_shown(name), translations[name]) for name in names],
            references,
            sources,
            tokenize=tokenize,
            groupings=groupings(sources, references[0], options.training_text),
            metrics=metrics,
            lowercase=options.lowercase,
            examples=options.examples,
            notes=filter(None, dict.fromkeys(map(note_for, configs))),
            done=bar.update,
        )
    for warning in comparison.warnings:
        warn(warning)
    print(as_text(comparison, colour=_wants_colour()))
    if options.html:
        write_atomically(options.html, as_page(comparison))
    if options.json:
        write_atomically(options.json, as_json(comparison))


def _distinct(systems: list[str]) -> list[str]:
    """The systems, without those that are given again, of which it warns."""
    found: dict[str, str] = {}
    for name in systems:
        path = os.path.realpath(name)
        if path in found:
            warn(f"{_shown(name)} is given twice. It is compared once")
        found.setdefault(path, name)
    return list(found.values())


def _require_valid(options: argparse.Namespace, names: list[str]) -> dict[str, EngineSpec]:
    """Checks the arguments. Returns the engine of each of the systems `names` that is a model.

    Raises:
        UsageError: an argument is wrong, or a file or model does not exist.
        UserError: a model is damaged.
    """
    if len(names) < 2:
        raise UsageError("compare: give at least two systems, of which the first is the baseline")
    if options.examples < 0:
        raise UsageError(f"--examples: {options.examples}: give a whole number from 0 on")
    require_files(options, "source", "reference", "training_text")
    read = {"--source": options.source, "--training-text": options.training_text}
    read |= {f"--reference {number}": path for number, path in enumerate(options.reference, 1)}
    read |= {f"SYSTEM {number}": Path(name) for number, name in enumerate(names, 1)}
    require_safe_outputs({"--html": options.html, "--json": options.json}, read)
    folders = [name for name in names if not is_readable(Path(name))]
    for name in folders:
        if not Path(split_model(name)[0]).is_dir():
            raise UsageError(f"{name}: there is no such file or model directory")
    if folders and options.source is None:
        raise UsageError(
            f"compare: {folders[0]} is a model. Give --source FILE, which it translates"
        )
    if options.ensemble and len(folders) != 1:
        raise UsageError("compare: --ensemble goes together with one SYSTEM that is a model")
    return {name: find_model(options, name) for name in folders}


def _require_as_many_lines(
    options: argparse.Namespace,
    references: list[list[str]],
    sources: list[str] | None,
    translations: dict[str, list[str]],
) -> None:
    """
    Raises:
        UserError: a file is empty, or has not as many lines as the reference.
    """
    first, *others = zip(options.reference, references, strict=True)
    files = [first, *others, *translations.items()]
    files += [] if sources is None else [(options.source, sources)]
    for path, own in files:
        if not own:
            raise UserError(f"{path} is empty: there is nothing to compare")
        require_equal(first[0], len(first[1]), Path(path), len(own))
    count = len(references[0])
    if count > MANY_LINES:
        warn(
            f"{count:,} lines are many for sacreBLEU's tests, which take minutes and about "
            f"{count * BYTES_PER_LINE / 1e9:.1f} GB of memory for them. A random sample of 10,000 "
            "lines is enough"
        )


def _shown(name: str) -> str:
    """A path as text; bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(name).decode("utf-8", "replace")


def _wants_colour() -> bool:
    """Whether stdout is a terminal, and https://no-color.org is not asked for."""
    return sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
