"""The command `convert`.

In the previous format (format_version 1), weights and optimiser state were pickles, which can run
any code when they are read. The conversion reads only the arrays in them, so it is safe for a
directory from any source. Translations stay the same, and training can be resumed.

examples:
  python -m transformer_mt convert runs/demo
  python -m transformer_mt convert runs/demo --to pdparams --output demo.pdparams
"""

import argparse

from transformer_mt.commands.arguments import add_checkpoint, add_files, add_model_dir
from transformer_mt.utils.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_dir(parser, "the model directory to convert, or the export")
    parser.add_argument(
        "--to",
        choices=("pdparams",),
        help="writes the weights of one checkpoint as Paddle's own file (default: brings MODEL_DIR "
        "to the format of this version)",
    )
    add_checkpoint(parser)
    add_files(
        parser,
        output="the file for --to pdparams (default: MODEL_DIR/export/CHECKPOINT.pdparams)",
    )


def run(options: argparse.Namespace) -> None:
    from transformer_mt.training import conversion  # which help does not need

    if options.to is not None:
        print(conversion.write_pdparams(options.model_dir, options.checkpoint, options.output))
    elif options.checkpoint or options.output:
        raise UsageError("convert: --checkpoint and --output go together with --to pdparams")
    else:
        conversion.convert(options.model_dir)
