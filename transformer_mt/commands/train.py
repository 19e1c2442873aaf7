"""The command `train`.

examples:
  python -m transformer_mt train configs/demo.yaml
  python -m transformer_mt train my.yaml --check
  python -m transformer_mt train my.yaml training.max_steps=20000 model_dir=runs/long
"""

from __future__ import annotations

import argparse

from transformer_mt.commands.arguments import add_device, add_overrides
from transformer_mt.config import file as config_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="the recipe, a YAML file as in configs/")
    add_overrides(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="read config and data, show what would be trained and for how long, and stop",
    )
    parser.add_argument(
        "--restart",
        action="store_true",
        help="delete what runs have written in model_dir, and train from the beginning",
    )
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    config = config_file.load(options.config, options.overrides)
    # Paddle takes seconds to import; a wrong config is reported before that.
    from transformer_mt.assembly import run as training_run

    if options.check:
        training_run.check(config, options.device)
    else:
        training_run.train(config, options.device, options.restart)
