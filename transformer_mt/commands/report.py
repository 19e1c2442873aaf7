"""The command `report`.

The report is one file that any browser can show, without a network, on a phone too. It has the
curves of the training, over steps and over time; the config; facts about the data; scores with
confidence intervals; the translations from worst to best; how the same sentences were translated
over time; attention maps; and the versions and the hardware. Training writes it when it ends. This
command writes it at any time, also while the model is training. Several model directories are
compared in one report.

examples:
  python -m transformer_mt report runs/demo
  python -m transformer_mt report runs/first runs/second --output comparison.html
"""

import argparse
from pathlib import Path

from transformer_mt.commands import arguments
from transformer_mt.model_directory import REPORT, ModelDirectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_dirs",
        metavar="MODEL_DIR",
        nargs="+",
        help="a model directory that `train` wrote, or is writing",
    )
    arguments.add_files(
        parser,
        output="the file for the report (default: MODEL_DIR/report.html; for several model "
        "directories, report.html in the current folder)",
    )


def run(options: argparse.Namespace) -> None:
    """
    Raises:
        UsageError: a folder is no model directory.
        UserError: the report can't be written.
    """
    from transformer_mt.reports.run import write_report

    output = options.output
    if output is None:
        output = Path(REPORT)
        if len(options.model_dirs) == 1:
            output = ModelDirectory(options.model_dirs[0]).own(REPORT)
    write_report(options.model_dirs, output)
    print(output)
