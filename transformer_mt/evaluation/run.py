"""The verb `evaluate`, and the score of `align`."""

from __future__ import annotations

import os
from pathlib import Path

from transformer_mt.console import progress
from transformer_mt.data import pharaoh
from transformer_mt.decoding.run import ModelChoice, align, require_equal, translator_of
from transformer_mt.decoding.stream import input_lines
from transformer_mt.decoding.translator import Aligned
from transformer_mt.errors import UserError
from transformer_mt.evaluation import alignment
from transformer_mt.evaluation.alignment import AlignmentScores
from transformer_mt.evaluation.metrics import Scores, score, score_for, tokenizer_for_text
from transformer_mt.files import atomic, count_lines, lines
from transformer_mt.model_directory import ModelDirectory


def score_file(hypothesis: Path, reference: Path) -> Scores:
    """Scores a file of translations; Chinese is recognised and tokenised as such."""
    references = list(lines(reference))
    return score(list(input_lines(hypothesis)), references, tokenizer_for_text(references))


def score_model(model: ModelChoice, source: Path, reference: Path, output: Path | None) -> Scores:
    """Translates `source` with a model, keeps that in `output` if given, and scores it.

    Raises:
        UserError: anything wrong with the model directory or the files.
    """
    spec, decoding = model.find()
    config = ModelDirectory(spec.folder).load_config()
    sources = list(input_lines(source))
    references = list(lines(reference))
    require_equal(source, len(sources), reference, len(references))
    with (
        translator_of(spec, decoding.model_copy(update={"n_best": 1})) as translator,
        progress(total=len(sources), title="translating", unit="lines") as bar,
    ):
        hypotheses = translator.translate(sources, bar.update)
    if output:
        with atomic(output) as file:
            file.writelines(f"{hypothesis}\n" for hypothesis in hypotheses)
    return score_for(config, hypotheses, references)


def score_alignments(
    model: ModelChoice, source: Path, target: Path, reference: Path, output: Path | None
) -> AlignmentScores:
    """Aligns the lines of two files with a model, keeps that in `output` if given, and scores it.

    Raises:
        UserError: anything wrong with the model directory or the files.
    """
    gold = alignment.read_gold(reference)
    if source.is_file():
        require_equal(source, count_lines(source), reference, len(gold))
    found: list[Aligned] = []
    align(model, source, target, output or Path(os.devnull), found.append)
    require_equal(source, len(found), reference, len(gold))
    for number, (line, (_, possible)) in enumerate(zip(found, gold, strict=True), 1):
        for link in sorted(possible):
            if link[0] >= line.source_words or link[1] >= line.target_words:
                raise UserError(
                    f"{reference}, line {number}: {pharaoh.write([link])}: there are "
                    f"{line.source_words} words in the source of this line, and "
                    f"{line.target_words} in its target, of which the first is number 0"
                )
    return alignment.score((set(line.links) for line in found), gold)
