"""The command `align`.

Each line of output consists of links in Pharaoh's format: pairs i-j of a source word i and a target
word j, both counted from 0. Each target word is linked to the source word that it attends to most.
The line is empty if one side is empty. Words are separated by spaces. In languages without spaces,
such as zh and ja, each subword counts as a word.

A reference has such lines too, made by people: i-j is a sure link, and i?j or ipj is a possible
one. The alignment error rate is 0 if the model finds all sure links, and only sure or possible
links (Och and Ney 2003).

examples:
  python -m transformer_mt align runs/demo --source test.en --target test.de > links
  python -m transformer_mt align runs/demo --source test.en --target test.de \\
    --reference test.links
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.commands import arguments
from transformer_mt.commands.translating import (
    content,
    require_equal,
    write_for_pairs,
)
from transformer_mt.data import alignments
from transformer_mt.model_directory import require_safe_outputs
from transformer_mt.utils.errors import UserError

if TYPE_CHECKING:
    from transformer_mt.decoding.output import Aligned
    from transformer_mt.translator import Translator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_model_dir(parser, arguments.MODEL_OR_EXPORT)
    arguments.add_files(
        parser,
        required=("source", "target"),
        source="the source text, one sentence per line",
        target="the translations, one for each line of the source",
        reference="the reference links; the alignment error rate is printed instead of links",
        output="the file for the links (default: the standard output; with --reference, none)",
    )
    # Attention is that of one model.
    arguments.add_model_choice(parser, ("tag", "batch_tokens"), ensemble=False)


def run(options: argparse.Namespace) -> None:
    if options.reference is None:
        _align(options, options.output)
    else:
        print(scores(options))


def _align(
    options: argparse.Namespace, output: Path | None, found: list[Aligned] | None = None
) -> None:
    """Writes the links of each line, in Pharaoh's format, into a file (None: stdout), and appends
    what is written of each line to `found`, if there is such a list."""

    def links(translator: Translator, *pairs: Any) -> Iterator[str]:
        for aligned in translator.alignments(*pairs):
            if found is not None:
                found.append(aligned)
            yield alignments.write(aligned.links)

    write_for_pairs(options, output, "aligning", "attention", links)


def scores(options: argparse.Namespace) -> alignments.AlignmentScores:
    """Aligns as `_align` does, with output only to a given file, and scores that by the reference.

    Raises:
        UserError: anything wrong with the model directory or the files.
    """
    source, reference = options.source, options.reference
    read = {"--source": source, "--target": options.target, "--reference": reference}
    require_safe_outputs({"--output": options.output}, read)
    gold = alignments.read_gold(reference)
    if text := content(source):
        require_equal(source, text.line_count, reference, len(gold))
    found: list[Aligned] = []
    _align(options, options.output or Path(os.devnull), found)
    require_equal(source, len(found), reference, len(gold))
    for number, (line, (_, possible)) in enumerate(zip(found, gold, strict=True), 1):
        for link in sorted(possible):
            if link[0] >= line.source_words or link[1] >= line.target_words:
                raise UserError(
                    f"{reference}, line {number}: {alignments.write([link])}: there are "
                    f"{line.source_words} words in the source of this line, and "
                    f"{line.target_words} in its target, of which the first is number 0"
                )
    return alignments.scores_of((set(line.links) for line in found), gold)
