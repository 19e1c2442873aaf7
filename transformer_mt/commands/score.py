"""The command `score`.

A score is the natural logarithm of the probability that the model gives a translation, divided by
the length penalty, like the scores of translations that the model finds itself. With
--length-penalty 0 it is just the logarithm.

examples:
  python -m transformer_mt score runs/demo --source test.en --target test.de > scores
"""

from __future__ import annotations

import argparse

from transformer_mt.commands.arguments import add_files, add_model_dir, require_files
from transformer_mt.commands.line_files import reading_pairs
from transformer_mt.commands.model_choice import add_model_choice
from transformer_mt.decoding import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_dir(parser, "`train` or `export` has written")
    add_files(
        parser,
        required=("source", "target"),
        source="source text",
        target="its translation, line for line",
        output="the scores (stdout)",
    )
    add_model_choice(parser, ("length_penalty", "length_penalty_kind", "batch_tokens"))


def run(options: argparse.Namespace) -> None:
    require_files(options, "source", "target")
    with reading_pairs(options, options.output, "scoring", "scores") as opened:
        translator, pairs, bar, write_line = opened
        for value in translator.scores(pairs, bar.update):
            write_line(output.score(value))
