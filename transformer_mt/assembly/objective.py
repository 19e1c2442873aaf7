"""The training objective that a config asks for."""

from importlib import import_module

import numpy as np

from transformer_mt.config.schema import Config
from transformer_mt.data.subword import Subwords
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.loss import LabelSmoothedCrossEntropy
from transformer_mt.training.objective import Objective

# The terms of the objective: the names of their classes in the objective.py of the mechanism, by
# the mechanism's section of the config, which says whether it is on. A mechanism that is off is not
# imported. The term that repeats the rows of a batch comes first, so that the others draw each of
# them by itself.
TERMS = {
    "consistency": "Consistency",
    "word_noise": "WordNoise",
    "scheduled_sampling": "ScheduledSampling",
    "guided_attention": "GuidedAttention",
}


def make_objective(config: Config, model: Transformer, subwords: Subwords) -> Objective:
    """Returns the objective of the config for a model, or another class with its interface."""
    criterion = LabelSmoothedCrossEntropy(config.training.label_smoothing, subwords.target.pad)
    if config.model.non_autoregressive is not None:
        return _mask_prediction()(config, model, subwords, criterion)
    terms = []
    for section, name in TERMS.items():
        if getattr(config, section).is_on:
            mechanism = import_module(f"transformer_mt.mechanisms.{section}.objective")
            terms.append(getattr(mechanism, name)(config, model, subwords))
    return Objective(model, criterion, terms)


def decoded_lengths(
    config: Config, source_lengths: np.ndarray, target_lengths: np.ndarray
) -> np.ndarray:
    """As `Objective.decoded_lengths`, of the config's objective; no model is needed."""
    kind = Objective if config.model.non_autoregressive is None else _mask_prediction()
    return kind.decoded_lengths(config, source_lengths, target_lengths)


def _mask_prediction() -> type:
    from transformer_mt.mechanisms.mask_predict.objective import MaskPrediction

    return MaskPrediction
