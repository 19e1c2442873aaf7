"""The verb `evaluate`."""

from __future__ import annotations

from pathlib import Path

from transformer_mt import device as devices
from transformer_mt.console import progress
from transformer_mt.decoding.translator import Translator, input_lines
from transformer_mt.errors import UserError
from transformer_mt.evaluation.metrics import Scores, score, score_for, tokenizer_for_text
from transformer_mt.files import atomic, lines
from transformer_mt.model_directory import ModelDirectory


def score_file(hypothesis: Path, reference: Path) -> Scores:
    """Scores a file of translations; Chinese is recognised and tokenised as such."""
    references = list(lines(reference))
    return score(list(input_lines(hypothesis)), references, tokenizer_for_text(references))


def score_model(
    model_dir: str, source: Path, reference: Path, output: Path | None, device: str | None
) -> Scores:
    """Translates `source` with a model, keeps that in `output` if given, and scores it.

    Raises:
        UserError: anything wrong with the model directory or the files.
    """
    config = ModelDirectory(model_dir).load_config()
    sources = list(input_lines(source))
    references = list(lines(reference))
    if len(sources) != len(references):
        raise UserError(
            f"{source} has {len(sources):,} lines, {reference} has {len(references):,}: one line "
            "of each belongs together"
        )
    devices.use(device)
    translator = Translator.load(model_dir)
    with progress(total=len(sources), title="translating", unit="lines") as bar:
        hypotheses = list(translator.translate(sources, bar.update))
    if output:
        with atomic(output) as file:
            file.writelines(f"{hypothesis}\n" for hypothesis in hypotheses)
    return score_for(config, hypotheses, references)
