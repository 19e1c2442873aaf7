"""The command line: the verbs, their arguments, and what an error looks like.

Heavy modules are imported inside the verbs, so that help and a wrong config answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt import __version__
from transformer_mt.runtime import signals
from transformer_mt.runtime.errors import Interrupted, UsageError, UserError, describe

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from transformer_mt.commands.translate import ModelChoice

EXIT_CODES = """\
exit codes:
  0 done    1 failed    2 wrong config or arguments    130 Ctrl-C    143 SIGTERM
  129 SIGHUP (the terminal was lost)
"""
SCORES = """\
A score is the natural logarithm of the probability that the model gives a translation, divided by
the length penalty, as it is of those that it finds itself; with --length-penalty 0 just the
logarithm.

"""

MAPS = """\
The page holds all that it needs, for any browser: the maps of encoder, decoder and cross-attention,
of every layer, every head and the mean of the heads, over the subwords that the model reads. Point
at a cell or a subword to see its weights.

"""
ALIGNMENTS = """\
A line out is pairs i-j of a word of the source and one of the target, from 0, in the format of
Pharaoh: to each word of the target the one that it attends to most; an empty line where a side is
empty. Words are what stands between spaces; of a language without spaces, such as zh or ja, each
subword counts as a word.

A reference has such lines too, made by people, with i-j for a sure link and i?j or ipj for one that
is possible. The alignment error rate is 0 where all sure links are found and no link that is not
possible (Och and Ney 2003).

"""

FORMATS = """\
formats, each with one line for a line of the input:
  plain  the best translation
  tsv    the source; then the translation, its score and (--alignment) its alignment, and the same
         three of each further one of --n-best; a tab or an end of line in a text becomes a space
  jsonl  {"source", "source_pieces", "outputs": [{"text", "score", "log_prob", "pieces",
         "alignment"}, ...]}, the best output first; pieces are subwords

  score is log_prob, the natural logarithm of the probability, divided by the length penalty.
  alignment is pairs i-j of a word of the source and one of the translation, from 0: to each word of
  the translation the one that it attends to most. Words are what stands between spaces (U+2581 in
  pieces); of a language without spaces, such as zh or ja, each piece counts as a word.

"""
COUNTS = """\
what is counted:
  FLOPs   those of matrix products: 2mnk for (m, k) times (k, n); in training three times that, for
          the gradients too. A token of the target bears its share of the source. Decoding is step
          by step, with a cache; of a non-autoregressive model, by its iterations.
  memory  of one process (1 MB is 10^6 bytes). Activations are what is held when the loss has been
          computed: of usual sentences, and of the longest that training takes, in batches that
          training.device_tokens allows. float32 is counted as on a CPU; a GPU keeps less for
          dropout.
  time    of updates that are all full, with training.batch_tokens on the longer side.

"""


CONVERTING = """\
In the format before (format_version 1), weights and optimiser were pickles, which can run any code
when they are read. They are converted by a reader that knows arrays only, so a directory from
somewhere else can be converted safely. Nothing is lost: translations stay the same, and training
goes on where it was.

"""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)


def main(arguments: list[str] | None = None) -> int:
    """Runs a verb; returns the exit code."""
    try:
        with signals.raised():
            options = _parse(arguments)
            options.run(options)
            if sys.stdout is not None:
                sys.stdout.flush()
        return 0
    except Interrupted as stop:
        _end("interrupted\n")
        return stop.exit_code
    except BrokenPipeError:
        # The reader of our output (head, less) has had enough.
        _end()
        return 1
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        from transformer_mt.runtime.console import visible

        _end(f"error: {visible(describe(error))}\n")
        return error.exit_code if isinstance(error, UserError) else 1


def _end(message: str = "") -> None:
    """Says a last message and writes what is left to write. What nobody can read any longer (a
    pipe without a reader, a lost terminal) goes nowhere, or Python would complain at its end."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, message)):
        if stream is None:  # it was closed before we began
            continue
        try:
            stream.write(text)
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# ------------------------------------------------------------------------------------- arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m transformer_mt",
        description="Train, use and measure Transformer translation models with PaddlePaddle.",
        epilog=EXIT_CODES,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_train(verbs)
    _add_translate(verbs)
    _add_evaluate(verbs)
    _add_score(verbs)
    _add_align(verbs)
    _add_attention(verbs)
    _add_average(verbs)
    _add_export(verbs)
    _add_info(verbs)
    _add_convert(verbs)
    return parser


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    """argparse takes one run of key=value only; these may stand between the options too."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    stray = [text for text in rest if text.startswith("-") or "=" not in text]
    if stray or (rest and "overrides" not in options):
        parser.error(f"unrecognized arguments: {' '.join(stray or rest)}")
    if rest:
        options.overrides += rest
    return options


def _add_verb(
    verbs, name: str, run, summary: str, examples: str, more: str = ""
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"{more}examples:\n{examples}\n{EXIT_CODES}",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="D", help="cpu, gpu or gpu:N (a GPU if there is one)")


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="best, last, step_N or average_... (best; last if there is none)",
    )


def _positive(text: str) -> int:
    # Nothing is counted here that goes beyond nine digits; Python reads at most 4,300.
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        shown = repr(text if len(text) <= 12 else f"{text[:9]}...")
        raise argparse.ArgumentTypeError(f"{shown}: expected a whole number from 1 on")
    return int(text)


def _positive_number(text: str) -> float:
    number = _number(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return number


def _share(text: str) -> float:
    number = _number(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a share, above 0 and at most 1")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", help="section.key=value over the file's"
    )


def _add_model_choice(parser: argparse.ArgumentParser, settings: Iterable[str]) -> None:
    """The arguments by which verbs choose how to use a model, with a flag for each of these keys of
    the config's decoding section."""
    parser.add_argument(
        "--engine",
        choices=("paddle", "paddle_inference", "ctranslate2"),
        help="what computes (paddle, or what an export was made for)",
    )
    _add_checkpoint(parser)
    parser.add_argument(
        "--ensemble",
        metavar="DIR[:NAME]",
        action="append",
        default=[],
        help="one more model, with the same subwords: the mean of the probabilities decides; "
        "may be repeated",
    )
    parser.add_argument(
        "--threads", metavar="N", type=_positive, help="how many cores of a CPU to use (all)"
    )
    _add_device(parser)
    group = parser.add_argument_group("in place of the model's own settings (its decoding section)")
    for name in settings:
        field = _decoding_settings()[name]
        flag = "--" + name.replace("_", "-")
        if field.annotation is bool:
            group.add_argument(
                flag,
                action=argparse.BooleanOptionalAction,
                default=argparse.SUPPRESS,
                help=field.description,
            )
        else:
            group.add_argument(
                flag,
                metavar="X",
                type=_setting,
                default=argparse.SUPPRESS,
                help=field.description,
            )


def _decoding_settings() -> dict[str, FieldInfo]:
    """The keys of the config's decoding section."""
    from transformer_mt.config.schema import DecodingConfig

    return DecodingConfig.model_fields


def _setting(text: str) -> int | float | str | None:
    """A value as in a config; whether it is a good one is the schema's to say."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None if text == "null" else text


def _model_choice(options: argparse.Namespace, model_dir: str) -> ModelChoice:
    from transformer_mt.commands.translate import ModelChoice

    given = vars(options)
    return ModelChoice(
        model_dir,
        engine=options.engine,
        checkpoint=options.checkpoint,
        ensemble=tuple(options.ensemble),
        threads=options.threads,
        device=options.device,
        decoding={name: given[name] for name in _decoding_settings() if name in given},
    )


def _add_train(verbs) -> None:
    parser = _add_verb(
        verbs,
        "train",
        _train,
        "Train the model that a YAML file describes, or go on with it; then score its test set.",
        "  python -m transformer_mt train configs/demo.yaml\n"
        "  python -m transformer_mt train my.yaml --check\n"
        "  python -m transformer_mt train my.yaml training.max_steps=20000 model_dir=runs/long\n",
    )
    parser.add_argument("config", metavar="CONFIG", help="the recipe, a YAML file as in configs/")
    _add_overrides(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="read config and data, show what would be trained and for how long, and stop",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="delete what runs have written in model_dir, and train anew",
    )
    _add_device(parser)


def _add_translate(verbs) -> None:
    parser = _add_verb(
        verbs,
        "translate",
        _translate,
        "Translate text, one line out for every line in.",
        "  python -m transformer_mt translate runs/demo < in.txt > out.txt\n"
        "  python -m transformer_mt translate runs/demo --input in.txt --output out.txt\n"
        "  echo 'Where is the station?' | python -m transformer_mt translate runs/demo\n"
        "  python -m transformer_mt translate runs/demo --n-best 3 --format tsv < in.txt\n",
        FORMATS,
    )
    parser.add_argument(
        "model_dir", metavar="MODEL_DIR", help="what `train` or `export` has written"
    )
    parser.add_argument("--input", metavar="FILE", type=Path, help="text to translate (stdin)")
    parser.add_argument("--output", metavar="FILE", type=Path, help="its translation (stdout)")
    parser.add_argument(
        "--resume", action="store_true", help="go on with an --output that was not finished"
    )
    parser.add_argument(
        "--prefix",
        metavar="FILE",
        type=Path,
        help="how translations begin, line by line",
    )
    parser.add_argument(
        "--format", choices=("plain", "tsv", "jsonl"), default="plain", help="see below (plain)"
    )
    parser.add_argument(
        "--alignment", action="store_true", help="say which words belong together (tsv, jsonl)"
    )
    _add_model_choice(parser, _decoding_settings())


def _add_evaluate(verbs) -> None:
    parser = _add_verb(
        verbs,
        "evaluate",
        _evaluate,
        "Score translations with sacreBLEU: a model's, several models' side by side, or those of a "
        "file.",
        "  python -m transformer_mt evaluate runs/demo --source test.en --reference test.de\n"
        "  python -m transformer_mt evaluate runs/a runs/b --source test.en --reference test.de\n"
        "  python -m transformer_mt evaluate --hypothesis out.de --reference test.de\n",
    )
    parser.add_argument(
        "model_dirs", metavar="MODEL_DIR", nargs="*", help="translate with it first, and time that"
    )
    parser.add_argument("--source", metavar="FILE", type=Path, help="text to translate")
    parser.add_argument("--hypothesis", metavar="FILE", type=Path, help="translations to score")
    parser.add_argument(
        "--reference", metavar="FILE", type=Path, required=True, help="one line for each line"
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="where the translations go")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="the scores as JSON, of several models a list"
    )
    _add_model_choice(parser, (name for name in _decoding_settings() if name != "n_best"))


def _add_score(verbs) -> None:
    parser = _add_verb(
        verbs,
        "score",
        _score,
        "Score given translations with a model, one score for each line.",
        "  python -m transformer_mt score runs/demo --source test.en --target test.de > scores\n",
        SCORES,
    )
    parser.add_argument(
        "model_dir", metavar="MODEL_DIR", help="what `train` or `export` has written"
    )
    parser.add_argument("--source", metavar="FILE", type=Path, required=True, help="source text")
    parser.add_argument(
        "--target", metavar="FILE", type=Path, required=True, help="its translation, line for line"
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="the scores (stdout)")
    _add_model_choice(parser, ("length_penalty", "length_penalty_kind", "batch_tokens"))


def _add_attention(verbs) -> None:
    parser = _add_verb(
        verbs,
        "attention",
        _attention,
        "Draw what a model attends to, over a sentence and its translation, as an HTML page.",
        "  python -m transformer_mt attention runs/demo --text 'Where is the station?'\n"
        "  python -m transformer_mt attention runs/demo --text 'Where is the station?' \\\n"
        "      --target 'Wo ist der Bahnhof?' --output station.html\n",
        MAPS,
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="what `train` has written")
    parser.add_argument("--text", metavar="TEXT", required=True, help="a line of source text")
    parser.add_argument(
        "--target", metavar="TEXT", help="its translation (the best that the model finds)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("attention.html"),
        help="the page (attention.html)",
    )
    _add_checkpoint(parser)
    _add_device(parser)


def _add_align(verbs) -> None:
    parser = _add_verb(
        verbs,
        "align",
        _align,
        "Say which words of given translations belong together, one line for each line; or score "
        "that.",
        "  python -m transformer_mt align runs/demo --source test.en --target test.de > links\n"
        "  python -m transformer_mt align runs/demo --source test.en --target test.de \\\n"
        "    --reference test.links\n",
        ALIGNMENTS,
    )
    parser.add_argument(
        "model_dir", metavar="MODEL_DIR", help="what `train` or `export` has written"
    )
    parser.add_argument("--source", metavar="FILE", type=Path, required=True, help="source text")
    parser.add_argument(
        "--target", metavar="FILE", type=Path, required=True, help="its translation, line for line"
    )
    parser.add_argument(
        "--reference", metavar="FILE", type=Path, help="true links: their error rate is put out"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="the links (stdout; with --reference: nowhere)"
    )
    _add_model_choice(parser, ("batch_tokens",))


def _add_average(verbs) -> None:
    parser = _add_verb(
        verbs,
        "average",
        _average,
        "Average the weights of checkpoints, which often translates better than any of them.",
        "  python -m transformer_mt average runs/demo --last 5\n"
        "  python -m transformer_mt translate runs/demo --checkpoint average_last_5 < in.txt\n",
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="what `train` has written")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", metavar="N", type=_positive, help="the last N checkpoints")
    which.add_argument(
        "--best", metavar="N", type=_positive, help="the N best on the dev set (training.keep_best)"
    )


def _add_export(verbs) -> None:
    parser = _add_verb(
        verbs,
        "export",
        _export,
        "Write a model in another format: for CTranslate2, which translates on a CPU and needs no "
        "Paddle, or for Paddle Inference. The folder holds all that is needed, and can be moved.",
        "  python -m transformer_mt export runs/demo --format ctranslate2\n"
        "  python -m transformer_mt export runs/demo --format ctranslate2 --quantization int8\n"
        "  python -m transformer_mt translate runs/demo --engine ctranslate2 < in.txt\n"
        "  python -m transformer_mt translate runs/demo/export/ctranslate2_int8 < in.txt\n",
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="what `train` has written")
    parser.add_argument("--format", required=True, choices=("ctranslate2", "paddle"))
    parser.add_argument(
        "--quantization",
        choices=("int8", "int8_float32", "int16", "float16", "bfloat16"),
        help="of CTranslate2: smaller weights. int8: a quarter of the size, and faster on a CPU",
    )
    _add_checkpoint(parser)
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        help="where it goes (MODEL_DIR/export/FORMAT or .../FORMAT_QUANTIZATION); an earlier "
        "export is replaced, anything else is not",
    )


def _add_info(verbs) -> None:
    parser = _add_verb(
        verbs,
        "info",
        _info,
        "Count a model's parameters, FLOPs and memory, and the hours of training; reads no data.",
        "  python -m transformer_mt info configs/wmt14_en_de_base.yaml\n"
        "  python -m transformer_mt info configs/wmt14_en_de_big.yaml training.devices=8 "
        "--tflops 19.5\n"
        "  python -m transformer_mt info my.yaml model.d_model=256 training.max_steps=50000\n"
        "  python -m transformer_mt info runs/demo\n",
        COUNTS,
    )
    parser.add_argument(
        "config",
        metavar="CONFIG|MODEL_DIR",
        type=Path,
        help="a recipe, a YAML file as in configs/, or what `train` has written",
    )
    _add_overrides(parser)
    parser.add_argument(
        "--tflops",
        metavar="X",
        type=_positive_number,
        help="what one device (training.devices) does at its peak, in training.precision: 10^12 "
        "operations a second, as its maker states it; gives the time of training",
    )
    parser.add_argument(
        "--utilisation",
        metavar="X",
        type=_share,
        help="the share of it that training reaches (0.3; by this count it was 0.25 for the base "
        "model of the paper on its eight P100 of 10.6 TFLOP/s, and 0.37 for the big one)",
    )
    parser.add_argument(
        "--length",
        metavar="N",
        type=_positive,
        help="subwords of a sentence on either side, its end among them (30)",
    )


def _add_convert(verbs) -> None:
    parser = _add_verb(
        verbs,
        "convert",
        _convert,
        "Bring a model directory or an export of an earlier version to this one's format; or write "
        "a checkpoint as Paddle's own file, for tools that read no safetensors.",
        "  python -m transformer_mt convert runs/demo\n"
        "  python -m transformer_mt convert runs/demo --to pdparams --output demo.pdparams\n",
        CONVERTING,
    )
    parser.add_argument(
        "model_dir", metavar="MODEL_DIR", help="what an earlier `train` or `export` has written"
    )
    parser.add_argument("--to", choices=("pdparams",), help="what to write (this version's format)")
    _add_checkpoint(parser)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="of --to pdparams: the file (MODEL_DIR/export/CHECKPOINT.pdparams)",
    )


# ----------------------------------------------------------------------------------------- verbs


def _train(options: argparse.Namespace) -> None:
    from transformer_mt.config import file as config_file

    config = config_file.load(options.config, options.overrides)

    from transformer_mt.commands import train as run

    if options.check:
        run.check(config, options.device)
    else:
        run.train(config, options.device, options.restart)


def _translate(options: argparse.Namespace) -> None:
    _require_file("--input", options.input)

    _require_file("--prefix", options.prefix)

    from transformer_mt.commands import translate as run

    run.translate(
        _model_choice(options, options.model_dir),
        options.input,
        options.output,
        prefix=options.prefix,
        format=options.format,
        alignment=options.alignment,
        resume=options.resume,
    )


def _evaluate(options: argparse.Namespace) -> None:
    from transformer_mt.commands import evaluate as run
    from transformer_mt.runtime.files import atomic, require_distinct

    if bool(options.model_dirs) == (options.hypothesis is not None):
        raise UsageError("evaluate: give either MODEL_DIR with --source, or --hypothesis")
    if bool(options.model_dirs) != (options.source is not None):
        raise UsageError("evaluate: MODEL_DIR and --source belong together")
    if options.hypothesis and options.output:
        raise UsageError("evaluate: --output is for what MODEL_DIR translates")
    read = {f"--{name}": getattr(options, name) for name in ("source", "hypothesis", "reference")}
    for name, path in read.items():
        _require_file(name, path)
    require_distinct({"--output": options.output, "--json": options.json}, read)
    if options.hypothesis:
        results = [run.score_file(options.hypothesis, options.reference)]
    else:
        models = [_model_choice(options, model_dir) for model_dir in options.model_dirs]
        results = run.score_models(models, options.source, options.reference, options.output)
    print(results[0] if len(results) == 1 else run.as_table(results))
    if options.json:
        values = [result.as_dict() for result in results]
        with atomic(options.json) as file:
            json.dump(values[0] if len(values) == 1 else values, file, indent=2)
            file.write("\n")


def _score(options: argparse.Namespace) -> None:
    _require_file("--source", options.source)
    _require_file("--target", options.target)

    from transformer_mt.commands import translate as run

    model = _model_choice(options, options.model_dir)
    run.score(model, options.source, options.target, options.output)


def _attention(options: argparse.Namespace) -> None:
    from transformer_mt.commands import attention as run

    run.draw(
        options.model_dir,
        options.text,
        options.output,
        target=options.target,
        checkpoint=options.checkpoint,
        device=options.device,
    )
    print(options.output)


def _align(options: argparse.Namespace) -> None:
    for name in ("source", "target", "reference"):
        _require_file(f"--{name}", getattr(options, name))

    if options.reference is None:
        from transformer_mt.commands import translate as run

        model = _model_choice(options, options.model_dir)
        run.align(model, options.source, options.target, options.output)
        return

    from transformer_mt.evaluation import alignment_error_rate as alignment

    files = options.source, options.target, options.reference, options.output
    print(alignment.score_model(_model_choice(options, options.model_dir), *files))


def _average(options: argparse.Namespace) -> None:
    from transformer_mt.commands import train as run

    kind = "last" if options.last else "best"
    run.average(options.model_dir, kind, options.last or options.best)


def _export(options: argparse.Namespace) -> None:
    from transformer_mt.commands import export as run

    run.export(
        options.model_dir,
        options.format,
        options.output,
        options.checkpoint,
        options.quantization,
    )


def _info(options: argparse.Namespace) -> None:
    from transformer_mt.commands.info import info
    from transformer_mt.inspect.report import Speed

    speed = None
    if options.tflops is not None:
        share = {} if options.utilisation is None else {"utilisation": options.utilisation}
        speed = Speed(options.tflops, **share)
    elif options.utilisation is not None:
        raise UsageError("--utilisation: is a share of --tflops, so give that too")
    info(options.config, options.overrides, options.length, speed)


def _convert(options: argparse.Namespace) -> None:
    if options.to is None and (options.checkpoint or options.output):
        raise UsageError("convert: --checkpoint and --output go together with --to pdparams")

    from transformer_mt.commands import convert

    if options.to is None:
        convert.convert(options.model_dir)
    else:
        convert.write_pdparams(options.model_dir, options.checkpoint, options.output)


def _require_file(option: str, path: Path | None) -> None:
    if path is not None and not path.is_file() and not path.is_fifo():
        raise UsageError(f"{option}: {path}: there is no such file")
