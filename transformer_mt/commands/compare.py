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
  python -m transformer_mt compare --reference test.de --source test.en --terms terms.tsv one two
  python -m transformer_mt compare --reference test.de --source test.en runs/a:step_500 runs/a \\
      --html comparison.html --json comparison.json
"""

import argparse
import os
import sys
from pathlib import Path

from transformer_mt.commands import arguments
from transformer_mt.commands.translating import (
    find_engine,
    numbered,
    read_terms,
    read_together,
    translate,
)
from transformer_mt.export.registry import split_model
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.reports.comparison import as_json, as_page, as_text
from transformer_mt.scoring import metrics
from transformer_mt.scoring.comparison import compare
from transformer_mt.scoring.groups import groupings
from transformer_mt.scoring.metrics import MANY_LINES, METRICS
from transformer_mt.scoring.significance import TESTS
from transformer_mt.utils.console import progress, say, warn
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import write_atomically

# What sacreBLEU's bootstrap of chrF holds in memory: 1,000 samples of 18 numbers of 4 bytes.
BYTES_PER_LINE = 72_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "systems",
        metavar="SYSTEM",
        nargs="+",
        help="a file of translations, or MODEL_DIR[:CHECKPOINT]; the first one is the baseline",
    )
    arguments.add_references(parser)
    arguments.add_files(
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
    arguments.add_score_options(parser, tuple(METRICS), about)
    arguments.add_terms(parser, "files")
    arguments.add_values(
        parser,
        "LANG",
        target_lang="the language of the translations, for files with --terms; it decides which "
        "words have the same stem (default: any language with its script)",
    )
    arguments.add_model_choice(parser, arguments.ONE_BEST)


def run(options: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: an argument is wrong, or a file or model does not exist.
        UserError: the files have different numbers of lines, or something is wrong with a model.
    """
    names = _distinct(options.systems)
    _require_consistent(options, names)
    models = {name: find_engine(options, name, n_best=1) for name in names if _is_model(name)}
    files = {name: Path(name) for name in names if name not in models}
    texts = read_together(options.reference, [options.source, *files.values()])
    references = [texts[path] for path in options.reference]
    sources = texts.get(options.source)
    translations = {name: texts[path] for name, path in files.items()}
    if (count := len(references[0])) > MANY_LINES:
        warn(
            f"{count:,} lines are many for sacreBLEU's tests, which take minutes and about "
            f"{count * BYTES_PER_LINE / 1e9:.1f} GB of memory for them. A random sample of 10,000 "
            "lines is enough"
        )
    configs = [spec.config for spec in models.values()]
    tokenize = options.tokenize
    if tokenize is None:
        tokenize = (
            metrics.tokenizer_for(configs[0])
            if configs
            else metrics.tokenizer_for_text(references[0])
        )
    chosen = list(dict.fromkeys(options.metrics))
    if "bleu" in chosen:
        metrics.require_package_of(tokenize)
    groups = groupings(sources, references[0], options.training_text)
    checker = None
    if options.terms:
        _, checker = read_terms(options, list(models.values()), sources, references[0])
    tested = [*chosen, *(checker.metrics() if checker else ())]
    for name, spec in models.items():
        say(f"{name}: translating {count:,} lines")
        translations[name], _ = translate(spec, sources)
    with progress(total=len(tested) * len(TESTS), title="comparing", unit="tests") as bar:
        comparison = compare(
            # Bytes of a name that are not UTF-8 become U+FFFD.
            [(os.fsencode(name).decode("utf-8", "replace"), translations[name]) for name in names],
            references,
            sources,
            tokenize=tokenize,
            groupings=groups,
            metrics=chosen,
            lowercase=options.lowercase,
            examples=options.examples,
            notes=filter(None, dict.fromkeys(map(metrics.note_for, configs))),
            terms=checker,
            done=bar.update,
        )
    for warning in comparison.warnings:
        warn(warning)
    # https://no-color.org
    colour = sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(as_text(comparison, colour))
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
            warn(f"{name} is given twice. It is compared once")
        found.setdefault(path, name)
    return list(found.values())


def _is_model(name: str) -> bool:
    """Whether a system is a model, and not a file, a pipe or a device."""
    return Path(name).is_dir() or not Path(name).exists()


def _require_consistent(options: argparse.Namespace, names: list[str]) -> None:
    """
    Raises:
        UsageError: the arguments do not fit together, or a system of `names` does not exist.
    """
    if len(names) < 2:
        raise UsageError("compare: give at least two systems, of which the first is the baseline")
    if options.examples < 0:
        raise UsageError(f"--examples: {options.examples}: give a whole number from 0 on")
    require_safe_outputs(
        {"--html": options.html, "--json": options.json},
        {"--source": options.source, "--terms": options.terms}
        | {"--training-text": options.training_text}
        | numbered("--reference", options.reference)
        | numbered("SYSTEM", map(Path, names)),
    )
    models = [name for name in names if _is_model(name)]
    for name in models:
        if not Path(split_model(name)[0]).is_dir():
            raise UsageError(f"{name}: there is no such file or model directory")
    if options.terms and options.source is None:
        raise UsageError("compare: --terms needs --source")
    if (options.source_lang or options.target_lang) and (models or not options.terms):
        raise UsageError(
            "compare: --source-lang and --target-lang are for files with --terms; a model knows "
            "its languages"
        )
    if models and options.source is None:
        raise UsageError(
            f"compare: {models[0]} is a model. Give --source FILE, which it translates"
        )
    if options.ensemble and len(models) != 1:
        raise UsageError("compare: --ensemble goes together with one SYSTEM that is a model")
