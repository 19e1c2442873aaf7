"""The command `score`.

The score of a translation is the natural logarithm of the probability that the model gives it,
divided by the length penalty. It is the score that `translate` shows for a translation that the
model finds itself. With --length-penalty 0, it is the logarithm alone.

A pair is read as a whole, with all of its sentences. `translate` translates sentences one by one,
so it shows another score for a line of several sentences.

examples:
  python -m transformer_mt score runs/demo --source test.en --target test.de > scores
"""

import argparse

from transformer_mt.commands import arguments
from transformer_mt.commands.translating import write_for_pairs
from transformer_mt.decoding import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser, arguments.MODEL_OR_EXPORT)
    arguments.add_files(
        parser,
        required=("source", "target"),
        source="the source text, one sentence per line",
        target="the translations, one for each line of the source",
        output="the file for the scores (default: the standard output)",
    )
    arguments.add_model_choice(
        parser, ("tag", "length_penalty", "length_penalty_kind", "batch_tokens")
    )


def run(options: argparse.Namespace) -> None:
    write_for_pairs(
        options,
        options.output,
        "scoring",
        "scores",
        lambda translator, *pairs: map(output.score, translator.scores(*pairs)),
    )
