"""The command line: the verbs, their arguments, and what an error looks like.

Heavy modules are imported inside the verbs, so that help and a wrong config answer at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from pathlib import Path

from transformer_mt import __version__, signals
from transformer_mt.errors import Interrupted, UsageError, UserError, describe

EXIT_CODES = """\
exit codes:
  0 done    1 failed    2 wrong config or arguments    130 Ctrl-C    143 SIGTERM
"""


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)


def main(arguments: list[str] | None = None) -> int:
    """Runs a verb; returns the exit code."""
    signals.install()
    try:
        options = _parse(arguments)
        options.run(options)
        sys.stdout.flush()
        return 0
    except Interrupted as stop:
        print("interrupted", file=sys.stderr)
        return stop.exit_code
    except BrokenPipeError:
        # The reader of our output (head, less) has had enough. Nothing more can be flushed to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        print(f"error: {describe(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, UserError) else 1


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
    _add_average(verbs)
    return parser


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    """argparse takes one run of key=value only; these may stand between the options too."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    stray = [text for text in rest if text.startswith("-") or "=" not in text]
    if stray or (rest and options.verb != "train"):
        parser.error(f"unrecognized arguments: {' '.join(stray or rest)}")
    if rest:
        options.overrides += rest
    return options


def _add_verb(verbs, name: str, run, summary: str, examples: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"examples:\n{examples}\n{EXIT_CODES}",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    return parser


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="D", help="cpu, gpu or gpu:N (a GPU if there is one)")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 on")
    return int(text)


def _beam_size(text: str) -> int:
    if _positive(text) > 1000:
        raise argparse.ArgumentTypeError(f"{text}: expected at most 1000")
    return int(text)


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 0 on")
    return value


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
    parser.add_argument(
        "overrides", metavar="key=value", nargs="*", help="section.key=value over the file's"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read config and data, show what would be trained and for how long, and stop",
    )
    parser.add_argument(
        "--restart", action="store_true", help="delete the run that model_dir holds, and train anew"
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
        "  echo 'Where is the station?' | python -m transformer_mt translate runs/demo\n",
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", help="what `train` has written")
    parser.add_argument("--input", metavar="FILE", type=Path, help="text to translate (stdin)")
    parser.add_argument("--output", metavar="FILE", type=Path, help="its translation (stdout)")
    parser.add_argument(
        "--checkpoint",
        metavar="NAME",
        help="best, last, step_N or average_... (best; last if there is none)",
    )
    _add_device(parser)
    search = "  (the config's decoding section)"
    parser.add_argument("--beam-size", metavar="N", type=_beam_size, help="1: greedy" + search)
    parser.add_argument("--length-penalty", metavar="A", type=_not_negative, help="0: none")
    parser.add_argument(
        "--batch-tokens", metavar="N", type=_positive, help="source subwords decoded at once"
    )


def _add_evaluate(verbs) -> None:
    parser = _add_verb(
        verbs,
        "evaluate",
        _evaluate,
        "Score translations with sacreBLEU: a model's, or those of a file.",
        "  python -m transformer_mt evaluate runs/demo --source test.en --reference test.de\n"
        "  python -m transformer_mt evaluate --hypothesis out.de --reference test.de\n",
    )
    parser.add_argument("model_dir", metavar="MODEL_DIR", nargs="?", help="translate with it first")
    parser.add_argument("--source", metavar="FILE", type=Path, help="text to translate")
    parser.add_argument("--hypothesis", metavar="FILE", type=Path, help="translations to score")
    parser.add_argument(
        "--reference", metavar="FILE", type=Path, required=True, help="one line for each line"
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="where the translations go")
    parser.add_argument("--json", metavar="FILE", type=Path, help="the scores as JSON")
    _add_device(parser)


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


# ----------------------------------------------------------------------------------------- verbs


def _train(options: argparse.Namespace) -> None:
    from transformer_mt import config as config_schema

    config = config_schema.load(options.config, options.overrides)

    from transformer_mt.training import run

    signals.reinstall()

    if options.check:
        run.check(config, options.device)
    else:
        run.train(config, options.device, options.restart)


def _translate(options: argparse.Namespace) -> None:
    _require_file("--input", options.input)

    from transformer_mt.decoding import run

    signals.reinstall()

    changes = {
        "beam_size": options.beam_size,
        "length_penalty": options.length_penalty,
        "batch_tokens": options.batch_tokens,
    }
    run.translate(
        options.model_dir,
        options.input,
        options.output,
        checkpoint=options.checkpoint,
        device=options.device,
        decoding={key: value for key, value in changes.items() if value is not None},
    )


def _evaluate(options: argparse.Namespace) -> None:
    from transformer_mt.evaluation import run

    signals.reinstall()

    if (options.model_dir is None) == (options.hypothesis is None):
        raise UsageError("evaluate: give either MODEL_DIR with --source, or --hypothesis")
    if (options.model_dir is None) != (options.source is None):
        raise UsageError("evaluate: MODEL_DIR and --source belong together")
    if options.hypothesis and options.output:
        raise UsageError("evaluate: --output is for what MODEL_DIR translates")
    for name in ("source", "hypothesis", "reference"):
        _require_file(f"--{name}", getattr(options, name))
    if options.model_dir is None:
        scores = run.score_file(options.hypothesis, options.reference)
    else:
        scores = run.score_model(
            options.model_dir, options.source, options.reference, options.output, options.device
        )
    print(scores)
    if options.json:
        from transformer_mt.files import atomic

        with atomic(options.json) as file:
            json.dump(scores.as_dict(), file, indent=2)
            file.write("\n")


def _average(options: argparse.Namespace) -> None:
    from transformer_mt.training import run

    signals.reinstall()

    kind = "last" if options.last else "best"
    run.average(options.model_dir, kind, options.last or options.best)


def _require_file(option: str, path: Path | None) -> None:
    if path is not None and not path.is_file() and not path.is_fifo():
        raise UsageError(f"{option}: {path}: there is no such file")
