"""The command `evaluate`.

Give either models, the source and its reference, or --hypothesis, a file of translations, and the
reference. A model translates the source, and its translations are scored. A model can name its
checkpoint, as in runs/demo:step_500. SOURCE and REFERENCE can be given behind the models, or with
the options of the same names.
Several models, or several files, are compared in a table. The scores are those of sacreBLEU, with
its signatures. For models, the speed in lines per second is shown too.

--protocol lc.norm.tok scores as many papers on Multi30k do: raw text is lower-cased, its
punctuation is normalised, and Moses' tokeniser puts spaces between tokens, which BLEU then counts.
Source and reference are raw text too. docs/evaluation.md says when to use which protocol.

examples:
  python -m transformer_mt evaluate runs/demo test.en test.de
  python -m transformer_mt evaluate runs/demo --source test.en --reference test.de
  python -m transformer_mt evaluate runs/a:last runs/b --source test.en --reference test.de
  python -m transformer_mt evaluate --hypothesis out.de --reference test.de --confidence
  python -m transformer_mt evaluate --hypothesis out.de --reference test.de --metrics bleu ter
  python -m transformer_mt evaluate runs/a test.en test.de --terms terms.tsv --follow-terms
  python -m transformer_mt evaluate runs/multi30k test.en test.de --protocol lc.norm.tok
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from transformer_mt.commands import arguments
from transformer_mt.commands.translating import (
    find_engine,
    numbered,
    read_terms,
    read_together,
    translate,
)
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.normalization import LC_NORM_TOK, lc_norm_tok, looks_tokenized
from transformer_mt.data.terms import Term
from transformer_mt.export.registry import EngineSpec
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.scoring import metrics, systems
from transformer_mt.scoring.groups import groupings
from transformer_mt.scoring.metrics import METRICS, Comet
from transformer_mt.scoring.suspicions import TOKENIZED_LINES, merged, suspicions
from transformer_mt.utils.console import warn
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.files import write_atomically
from transformer_mt.utils.languages import has_spaces_in, taken_for

# What brings a line into the form that the protocol scores; None: lines are scored as they are.
Form = Callable[[str], str] | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="MODEL_DIR[:NAME]",
        nargs="*",
        default=[],
        help="a model directory, and optionally one of its checkpoints, or an export; it "
        "translates the source. Several are compared. If neither --source nor --reference is "
        "given, the last two of these names are SOURCE and REFERENCE",
    )
    arguments.add_files(parser, source="the text that the models translate")
    parser.add_argument(
        "--hypothesis",
        metavar="FILE",
        type=Path,
        action="append",
        help="translations to score, instead of those of a model; several are compared",
    )
    arguments.add_references(parser, required=False)  # it may be given by position
    arguments.add_files(
        parser,
        output="writes the translations to this file; those of several models to files in this "
        "folder",
        json="also writes the scores to this file, as JSON; several models or files give a list",
        sentences="writes the scores of each line to this file, as a table with tabs (TSV)",
    )
    group = parser.add_argument_group("options for the scores")
    about = f"the scores to compute, of {', '.join(METRICS)} and comet"
    arguments.add_score_options(group, (*METRICS, "comet"), about)
    group.add_argument(
        "--protocol",
        metavar="NAME",
        choices=(metrics.SACREBLEU, LC_NORM_TOK),
        default=metrics.SACREBLEU,
        help=f"what is scored: {metrics.SACREBLEU}, the text as it is, or {LC_NORM_TOK}, "
        f"lower-cased and tokenised text (default: {metrics.SACREBLEU})",
    )
    arguments.add_values(
        group,
        "LANG",
        target_lang="the language of --hypothesis, such as ja, which decides the tokeniser, and "
        "the stems of --terms (default: it is guessed from the script of the reference)",
    )
    arguments.add_terms(group, "--hypothesis")
    arguments.add_switches(
        group,
        follow_terms="the models also translate with the translations of --terms",
        confidence="also computes the 95 %% confidence interval of each score, by bootstrap "
        "resampling",
        groups="also shows the scores of lines of different length, and of lines with rare and "
        "with frequent words",
        metric_only="prints only the numbers, for scripts: a line for each model or file, with "
        "tabs",
    )
    help = "the folder of the model that --metrics comet uses"
    arguments.add_values(group, "FOLDER", Path, comet_model=help)
    arguments.add_model_choice(parser, arguments.ONE_BEST)


def run(options: argparse.Namespace) -> None:
    _take_positions(options)
    _require_consistent(options)
    # This reports a missing package before anything is computed.
    comet = Comet(options.comet_model) if "comet" in options.metrics else None
    texts = read_together(options.reference, [options.source, *(options.hypothesis or [])])
    references = [texts[path] for path in options.reference]
    sources = texts.get(options.source)
    # All models are found before the first one translates.
    asked = ["terms"] if options.follow_terms else []
    specs = [find_engine(options, name, *asked, n_best=1) for name in options.models]
    form = None
    if options.protocol == LC_NORM_TOK:
        form = lc_norm_tok(specs[0].config.data.target_lang if specs else options.target_lang)
        references = [list(map(form, reference)) for reference in references]
    terms, checker = None, None
    if options.terms:
        terms, checker = read_terms(options, specs, sources, references[0])
    measures = systems.Measures(
        metrics=list(dict.fromkeys(options.metrics)),
        lowercase=options.lowercase,
        confidence=options.confidence,
        comet=comet,
        groups=groupings(sources, references[0], options.training_text) if options.groups else {},
        sentences=options.sentences is not None,
        terms=checker,
    )
    scored = (
        _translated(options, specs, sources, form, terms if options.follow_terms else None)
        if specs
        else _given(options, texts, references[0], form)
    )
    evaluations = [systems.evaluate(system, sources, references, measures) for system in scored]
    found = (
        (one.system.name, suspicions(sources, one.system.hypotheses, references, one.scores))
        for one in evaluations
    )
    for warning in merged(found):
        warn(warning)
    for line in (
        map(systems.numbers, evaluations) if options.metric_only else systems.as_text(evaluations)
    ):
        print(line)
    if options.json:
        values = [one.as_dict() for one in evaluations]
        text = json.dumps(values[0] if len(values) == 1 else values, indent=2)
        write_atomically(options.json, f"{text}\n")
    if options.sentences:
        (one,) = evaluations
        hypotheses, spaces = one.system.hypotheses, has_spaces_in(sources or [])
        content = systems.sentence_table(one.sentences, sources, hypotheses, references, spaces)
        write_atomically(options.sentences, content)


def _take_positions(options: argparse.Namespace) -> None:
    """Sets --source and --reference to the two files behind the models, if they are given so.

    Raises:
        UsageError: they are given in both ways, or in none.
    """
    names = options.models
    if len(names) > 2 and not (options.source or options.reference or options.hypothesis):
        *options.models, source, reference = names
        options.source, options.reference = Path(source), [Path(reference)]
    elif options.reference is None:
        raise UsageError("evaluate: give MODEL_DIR SOURCE REFERENCE, or the option --reference")
    elif file := next((name for name in names if Path(name).is_file()), None):
        raise UsageError(
            f"evaluate: {file} is a file, not a model. Give SOURCE and REFERENCE either both "
            "behind the models, or both with --source and --reference"
        )


def _require_consistent(options: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: the arguments do not fit together.
    """
    models, files = options.models, options.hypothesis or []
    is_tokenized, has_comet = options.protocol == LC_NORM_TOK, "comet" in options.metrics
    for is_wrong, message in (
        (bool(models) == bool(files), "give either MODEL_DIR with --source, or --hypothesis"),
        (models and options.source is None, "MODEL_DIR and --source belong together"),
        (files and options.output, "--output is for what MODEL_DIR translates"),
        (models and options.target_lang, "--target-lang is for --hypothesis; a model knows it"),
        (models and options.source_lang, "--source-lang is for --hypothesis; a model knows it"),
        (options.terms and options.source is None, "--terms needs --source"),
        (options.source_lang and not options.terms, "--source-lang is for --terms"),
        (options.follow_terms and not (options.terms and models),
         "--follow-terms is for MODEL_DIR with --terms"),
        (len(models) > 1 and options.ensemble, "--ensemble goes together with one MODEL_DIR"),
        (len(models) + len(files) > 1 and options.sentences,
         "--sentences is for one MODEL_DIR or one --hypothesis"),
        (options.training_text and not options.groups, "--training-text is for --groups"),
        (is_tokenized and (options.tokenize or options.lowercase),
         f"--protocol {LC_NORM_TOK} includes lower-casing and a tokeniser of its own"),
        (is_tokenized and files and not options.target_lang,
         f"--protocol {LC_NORM_TOK} needs --target-lang, the language of the text, such as de"),
        (is_tokenized and (options.groups or options.terms or has_comet),
         "--groups, --terms and --metrics comet are for raw text, not for "
         f"--protocol {LC_NORM_TOK}"),
        (has_comet and not (options.comet_model and options.source),
         "--metrics comet needs --comet-model, the folder of a COMET model, and --source"),
    ):  # fmt: skip
        if is_wrong:
            raise UsageError(f"evaluate: {message}")
    require_safe_outputs(
        {"--json": options.json, "--sentences": options.sentences}
        | numbered("--output", _outputs(options)),
        {"--source": options.source, "--terms": options.terms}
        | {"--training-text": options.training_text}
        | numbered("--hypothesis", files)
        | numbered("--reference", options.reference)
        | numbered("--comet-model", options.comet_model.rglob("*") if options.comet_model else []),
    )


def _outputs(options: argparse.Namespace) -> list[Path | None]:
    """The file for the translations of each model. With several models, or if --output is a folder,
    their names are made of those of the models.

    Raises:
        UsageError: --output is for several models, but is a file.
    """
    folder: Path | None = options.output
    if folder is None:
        return [None for _ in options.models]
    if len(options.models) == 1 and not folder.is_dir():
        return [folder]
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"evaluate: --output {folder} is a file. Several models need a folder")
    names = [re.sub(r"[^\w.-]+", "_", model).strip("._") or "model" for model in options.models]
    before = [names[:number].count(name) for number, name in enumerate(names)]
    return [
        folder / f"{name}{f'.{count + 1}' if count else ''}.hypothesis"
        for name, count in zip(names, before, strict=True)
    ]


def _translated(
    options: argparse.Namespace,
    specs: list[EngineSpec],
    sources: list[str],
    form: Form,
    terms: list[Term] | None,
) -> Iterator[systems.System]:
    """Translates with each of the models, and writes the translations to --output.

    Args:
        terms: those that the search is to follow.

    Raises:
        UsageError, UserError: anything wrong with a model.
    """
    tokenize = [
        options.tokenize or ("none" if form else metrics.tokenizer_for(spec.config))
        for spec in specs
    ]
    if "bleu" in options.metrics:
        for own in set(tokenize):
            metrics.require_package_of(own)
    columns = options.models, specs, tokenize, _outputs(options)
    for name, spec, own, output in zip(*columns, strict=True):
        data = spec.config.data
        # A model of text in this form reads it and writes it.
        is_in_form = form is not None and DATASETS[data.dataset].is_lc_norm_tok
        text = list(map(lc_norm_tok(data.source_lang), sources)) if is_in_form else sources
        hypotheses, seconds = translate(spec, text, terms)
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(output, "".join(f"{hypothesis}\n" for hypothesis in hypotheses))
        if form is not None and not is_in_form:
            hypotheses = list(map(form, hypotheses))
        note = metrics.LC_NORM_TOK_NOTE if form else metrics.note_for(spec.config)
        yield systems.System(name, hypotheses, own, note, seconds)


def _given(
    options: argparse.Namespace,
    texts: dict[Path | None, list[str]],
    reference: list[str],
    form: Form,
) -> Iterator[systems.System]:
    """The files of translations, whose lines are `texts`."""
    tokenize = "none" if form else options.tokenize
    if options.target_lang:
        tokenize = tokenize or metrics.tokenizer_for_language(options.target_lang)
        if code := taken_for(options.target_lang):
            warn(f"--target-lang: {options.target_lang} is taken for {code}")
    for path in options.hypothesis:
        hypotheses = texts[path]
        if form is not None:
            if sum(map(looks_tokenized, hypotheses)) >= TOKENIZED_LINES * len(hypotheses):
                warn(
                    f"{path} seems to be tokenised already, and --protocol {LC_NORM_TOK} is for "
                    "raw text. Score it with --tokenize none, against a reference of its kind"
                )
            hypotheses = list(map(form, hypotheses))
        note = metrics.LC_NORM_TOK_NOTE if form else ""
        yield systems.System(
            str(path), hypotheses, tokenize or metrics.tokenizer_for_text(reference), note
        )
