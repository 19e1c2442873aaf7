"""The config section `scheduled_sampling`."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from transformer_mt.config.section import (
    NaturalNumber,
    PositiveFloat,
    PositiveInt,
    Probability,
    Problems,
    Section,
    needs,
)

# The default k of each decay. With these (and the default slope), the share of true words is one
# half after 5,000 steps of linear decay, and after about 6,900 steps of the other two.
DEFAULT_K = {"linear": 1.0, "exponential": 0.9999, "inverse_sigmoid": 1000.0}


class ScheduledSamplingConfig(Section):
    """Scheduled sampling: the decoder is trained on some of its own predictions in place of the
    true previous words, so that it learns to continue after its own mistakes. See
    configs/scheduled_sampling.yaml."""

    decay: Literal["linear", "exponential", "inverse_sigmoid"] | None = None
    """The formula for the share of true words, where i is the number of steps since `start`.
    linear           `k - slope * i`
    exponential      `k ^ i`
    inverse_sigmoid  `k / (k + exp(i / k))`
    null turns scheduled sampling off."""

    k: PositiveFloat | None = None
    """The k of the formulas of `decay`. null means 1.0 with linear, 0.9999 with exponential, 1000
    with inverse_sigmoid."""

    slope: PositiveFloat = 1e-4
    """The slope of the linear decay, per step."""

    minimum: Probability = 0.0
    """The smallest share of true words."""

    start: NaturalNumber = 0
    """The number of first steps with only true words."""

    mixing: Literal["argmax", "sampled", "top_k"] = "argmax"
    """What replaces a true word.
    argmax   the most probable word
    sampled  a word drawn from all words
    top_k    the mean of the embeddings of the top_k most probable words, by probability
    """

    top_k: PositiveInt = 5
    """The number of words for `mixing: top_k`."""

    backpropagate: bool = False
    """Whether the gradient also goes through the predictions. It needs `mixing: top_k`."""

    passes: Annotated[int, Field(ge=2, le=1000)] = 2
    """The number of passes of the decoder. With 2, the first predicts from the true words, and the
    second is trained on the mixture. With more, words are predicted again from the previous
    mixture, which is closer to translation."""

    @property
    def is_on(self) -> bool:
        """Whether training uses it."""
        return self.decay is not None

    @field_validator("k")
    @classmethod
    def _default_k(cls, k: float | None, info: ValidationInfo) -> float | None:
        return DEFAULT_K.get(info.data.get("decay")) if k is None else k


def rules(config: Any) -> Problems:
    """
    - `scheduled_sampling.k` must be below 1 with `scheduled_sampling.decay: exponential`, and at
      least 1 with `inverse_sigmoid`.
    - `scheduled_sampling.backpropagate` needs `scheduled_sampling.mixing: top_k`.
    """
    sampling, k = config.scheduled_sampling, config.scheduled_sampling.k
    about_k = "scheduled_sampling.k", "scheduled_sampling.decay"
    if k is not None and sampling.decay == "exponential" and k >= 1:
        yield about_k, "exponential decay needs k below 1"
    if k is not None and sampling.decay == "inverse_sigmoid" and k < 1:
        yield about_k, "inverse_sigmoid decay needs k of at least 1"
    yield from needs(
        *(config, "scheduled_sampling.backpropagate", "scheduled_sampling.mixing", "top_k"),
        "a choice has no gradient",
    )
