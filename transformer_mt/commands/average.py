"""The command `average`.

The average is one more checkpoint of the model directory. Its name is printed. The other
checkpoints stay as they are, and `translate` uses the average if --checkpoint names it.

examples:
  python -m transformer_mt average runs/demo --last 5
  python -m transformer_mt translate runs/demo --checkpoint average_last_5 < in.txt
"""

import argparse

from transformer_mt.commands import arguments
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    arguments.add_values(
        which,
        "N",
        arguments.positive,
        last="averages the last N checkpoints",
        best="averages the N checkpoints that are the best on the dev set, of those that "
        "training.keep_best keeps",
    )


def run(options: argparse.Namespace) -> None:
    """Averages checkpoints of a model, and says how to use the result."""
    from transformer_mt.training.folder import RunDirectory

    directory = RunDirectory(options.model_dir)
    kept = directory.load_config().training.keep_last
    if options.last and options.last > kept:
        raise UsageError(
            f"--last {options.last}: only the last {kept} are kept (training.keep_last)"
        )
    # Paddle takes seconds to import.
    from transformer_mt.training.checkpoint import average

    path = average(directory, "last" if options.last else "best", options.last or options.best)
    print(path)
    say(f"to translate with it: --checkpoint {path.name}")
