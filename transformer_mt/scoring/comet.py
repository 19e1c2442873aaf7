"""COMET (Rei et al. 2020, "COMET: A Neural Framework for MT Evaluation"): a score by a neural
network that was trained on the judgements of people. It is optional, because its package
`unbabel-comet` needs PyTorch, and its models have gigabytes.
"""

from dataclasses import replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformer_mt.scoring.metrics import Scores
from transformer_mt.utils.errors import UsageError, UserError


class Comet:
    """A COMET model on the disk.

    Args:
        path: the folder of the model, which holds hparams.yaml and checkpoints/model.ckpt, or the
            checkpoint itself. Loading it can run code, so it must come from a source that
            you trust.

    Raises:
        UsageError: there is no such model.
        UserError: the package is missing.
    """

    def __init__(self, path: Path) -> None:
        checkpoint = path if path.suffix == ".ckpt" else path / "checkpoints" / "model.ckpt"
        for file in (checkpoint, checkpoint.parent.parent / "hparams.yaml"):
            if not file.is_file():
                raise UsageError(
                    f"--comet-model: {file}: there is no such file. Give the folder of a COMET "
                    "model, which holds hparams.yaml and checkpoints/model.ckpt"
                )
        if find_spec("comet") is None:
            raise UserError(
                "COMET needs the package unbabel-comet. Install it with `.venv/bin/python -m pip "
                "install unbabel-comet`, or leave comet out of --metrics"
            )
        self._checkpoint = checkpoint

    @cached_property
    def _model(self) -> Any:
        # Importing loads PyTorch, so it waits until the translations are there.
        try:
            library = import_module("comet")
            return library.load_from_checkpoint(str(self._checkpoint), local_files_only=True)
        except (ImportError, OSError) as error:  # such as an encoder that was never downloaded
            raise UserError(f"COMET's model {self._checkpoint} cannot be loaded: {error}") from None

    def sentence_scores(
        self, sources: list[str], hypotheses: list[str], reference: list[str]
    ) -> list[float]:
        """Returns the score of each line. Most models give scores from 0 to 1.

        Raises:
            UserError: the model cannot be loaded.
        """
        columns = zip(sources, hypotheses, reference, strict=True)
        samples = [{"src": source, "mt": mt, "ref": ref} for source, mt, ref in columns]
        # On a GPU, COMET would need one that Paddle has not filled.
        return list(self._model.predict(samples, gpus=0, progress_bar=False).scores)

    def added_to(self, scores: Scores, sentence_scores: list[float]) -> Scores:
        """Returns scores with COMET's, the mean of those of the lines."""
        value = sum(sentence_scores) / len(sentence_scores)
        name = self._checkpoint.resolve().parent.parent.name
        signature = f"COMET|model:{name}|version:{import_module('comet').__version__}"
        return replace(
            scores,
            values=scores.values | {"comet": value},
            signatures=scores.signatures | {"comet": signature},
        )
