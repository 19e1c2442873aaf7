"""The command `train`.

examples:
  python -m transformer_mt train configs/demo.yaml
  python -m transformer_mt train my.yaml --check
  python -m transformer_mt train my.yaml training.max_steps=20000 model_dir=runs/long
"""

import argparse

from transformer_mt.assembly import fine_tuning
from transformer_mt.commands.arguments import add_device, add_overrides
from transformer_mt.utils.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", help="the recipe, a YAML file such as configs/demo.yaml"
    )
    add_overrides(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="read the recipe and the data without writing a model, show what would be trained and "
        "how long it would take, and warn of what is odd about it",
    )
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="with --check: show the values of all settings, not only of those that differ from "
        "the defaults",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="rename model_dir to NAME.before-restart, and train from the beginning (default: "
        "continue from the newest checkpoint)",
    )
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    if options.verbose and not options.check:
        raise UsageError("--verbose: give it together with --check")
    config = fine_tuning.load(options.config, options.overrides, options.restart)
    # Paddle takes seconds to import; a wrong config is reported before that.
    from transformer_mt.assembly import run as training_run

    if options.check:
        training_run.check(config, options.device, options.verbose, options.restart)
    else:
        training_run.train(config, options.device, options.restart)
