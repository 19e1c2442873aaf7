"""The verb `evaluate`."""

from __future__ import annotations

from pathlib import Path

from transformer_mt.console import progress
from transformer_mt.decoding.run import ModelChoice, require_equal, translator_of
from transformer_mt.decoding.stream import input_lines
from transformer_mt.evaluation.metrics import Scores, score, score_for, tokenizer_for_text
from transformer_mt.files import atomic, lines
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
