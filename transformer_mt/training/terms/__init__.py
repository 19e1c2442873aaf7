"""The training objectives of a config: teacher forcing with terms, or mask prediction.

This is the one place where a term is connected: its class, by the section of the config that says
whether it is on.
"""

from collections.abc import Callable

from transformer_mt.config.schema import Config
from transformer_mt.data.subword import Subwords
from transformer_mt.model.transformer import Transformer
from transformer_mt.training.objective import (
    LabelSmoothedCrossEntropy,
    MaskPrediction,
    Objective,
    Term,
)
from transformer_mt.training.terms.consistency import Consistency
from transformer_mt.training.terms.guided_attention import GuidedAttention
from transformer_mt.training.terms.perturbation import ScheduledSampling, WordNoise

# The term that repeats the rows of a batch comes first, so that the others draw for each row.
TERMS: dict[str, Callable[[Config, Transformer, Subwords], Term]] = {
    "consistency": Consistency,
    "word_noise": WordNoise,
    "scheduled_sampling": ScheduledSampling,
    "guided_attention": GuidedAttention,
}


def make_objective(
    config: Config, model: Transformer, subwords: Subwords
) -> Objective | MaskPrediction:
    """Returns the objective of the config for a model."""
    criterion = LabelSmoothedCrossEntropy(config.training.label_smoothing, subwords.target.pad)
    if config.model.non_autoregressive is not None:
        return MaskPrediction(config, model, subwords, criterion)
    terms = [
        term(config, model, subwords)
        for section, term in TERMS.items()
        if getattr(config, section).is_on
    ]
    return Objective(model, criterion, terms)
