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
    """Training on the model's own predictions, more and more of them."""

    decay: Literal["linear", "exponential", "inverse_sigmoid"] | None = Field(
        None, description="how the share of true words falls; null: all words are true"
    )
    k: PositiveFloat | None = Field(None, description="the decay's k; null: see configs/demo.yaml")
    slope: PositiveFloat = Field(1e-4, description="of linear decay, per step")
    minimum: Probability = Field(0.0, description="the least share of true words")
    start: NaturalNumber = Field(0, description="steps before the decay begins")
    mixing: Literal["argmax", "sampled", "top_k"] = Field(
        "argmax", description="what stands for a prediction: the best, a draw, or the mean of top_k"
    )
    top_k: PositiveInt = Field(5, description="of mixing: top_k")
    backpropagate: bool = Field(False, description="with top_k: also train what was predicted")
    passes: Annotated[int, Field(ge=2, le=1000)] = Field(
        2, description="of the decoder; more: parallel scheduled sampling"
    )

    @field_validator("k")
    @classmethod
    def _default_k(cls, k: float | None, info: ValidationInfo) -> float | None:
        return DEFAULT_K.get(info.data.get("decay")) if k is None else k


def rules(config: Any) -> Problems:
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
