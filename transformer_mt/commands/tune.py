"""The command `tune`.

The dev set that the model directory keeps is translated with about 16 settings. First come length
penalties of both kinds, and then beam sizes with the best penalty. The metric is that of
training.best_metric. The choice is written into the model's config.yaml, and everything that was
tried into tune.json. All commands use the choice, for every checkpoint of the directory. If nothing
is better than the values of the recipe, they stay. Of settings with equal scores, the smaller beam
is chosen, because it is faster.

examples:
  python -m transformer_mt tune runs/demo
  python -m transformer_mt tune runs/demo --checkpoint last --dry-run
"""

import argparse

from transformer_mt.commands import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser)
    arguments.add_switches(parser, dry_run="shows what would be chosen, and writes nothing")
    arguments.add_checkpoint(parser)
    arguments.add_threads(parser)
    arguments.add_device(parser)


def run(options: argparse.Namespace) -> None:
    # These import what takes long.
    from transformer_mt.training.folder import RunDirectory
    from transformer_mt.training.tune import choose

    directory = RunDirectory(options.model_dir)
    directory.load_config()  # reports if this is no model directory, before it is locked
    if not options.dry_run:
        directory.lock()  # a training would replace the config
    try:
        choose(directory, options.checkpoint, options.threads, options.device, options.dry_run)
    finally:
        directory.release()
