"""The command `train`.

examples:
  python -m transformer_mt train configs/demo.yaml
  python -m transformer_mt train my.yaml --check
  python -m transformer_mt train my.yaml training.max_steps=20000 model_dir=runs/long
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from transformer_mt.commands import arguments
from transformer_mt.model_directory import MODEL_CARD, REPORT
from transformer_mt.training import settings
from transformer_mt.utils.console import duration, quoted, say, show, warn
from transformer_mt.utils.errors import UsageError, UserError, describe
from transformer_mt.utils.files import write_atomically

if TYPE_CHECKING:
    from transformer_mt.training.folder import RunDirectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", help="the recipe, a YAML file such as configs/demo.yaml"
    )
    arguments.add_overrides(parser)
    arguments.add_switches(
        parser,
        check="read the recipe and the data without writing a model, show what would be trained "
        "and how long it would take, and warn of what is odd about it",
        verbose="with --check: show the values of all settings, not only of those that differ from "
        "the defaults",
        restart="rename model_dir to NAME.before-restart, and train from the beginning (default: "
        "continue from the newest checkpoint)",
    )
    arguments.add_device(parser)


def run(options: argparse.Namespace) -> None:
    if options.verbose and not options.check:
        raise UsageError("--verbose: give it together with --check")
    config = settings.load(options.config, options.overrides, options.restart)
    # Paddle takes seconds to import; a wrong config is reported before that.
    from transformer_mt.training.run import check, train

    if options.check:
        check(config, options.device, options.verbose, options.restart)
        return
    started = time.monotonic()

    def finished(directory: RunDirectory) -> None:
        for what, write in (("report", _write_report), ("model card", _write_card)):
            try:
                write(directory)
            except (UserError, ModuleNotFoundError) as error:  # the model is complete without it
                warn(f"the {what} could not be written: {describe(error)}")
        say(f"done in {duration(time.monotonic() - started)}")
        path, report = quoted(directory.path), directory.path / REPORT
        show("\nNext:")
        show(f"  bash scripts/translate.sh {path} FILE   # translate a text, line by line")
        show(f"  bash scripts/evaluate.sh {path} SOURCE REFERENCE   # score it")
        if report.is_file():
            show(f"  {quoted(report)}   # open it in a browser: how the run went")

    train(config, options.device, options.restart, finished)


def _write_report(directory: RunDirectory) -> None:
    from transformer_mt.reports.run import write_report

    write_report([directory.path], directory.own(REPORT))


def _write_card(directory: RunDirectory) -> None:
    if directory.has_edited_card:
        say(f"{directory.path / MODEL_CARD} was edited, so it is kept; delete it to get a new one")
        return
    from transformer_mt.reports.card import card_of

    card = card_of(directory, directory.checkpoint().name)
    write_atomically(directory.own(MODEL_CARD), card)
