"""The config section `consistency`."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from transformer_mt.config.section import Probability, Problems, Section, needs

# The weights of the papers.
DEFAULT_WEIGHT = {"r_drop": 5.0, "sim_cut": 3.0, "cutoff": 1.0}


class ConsistencyConfig(Section):
    """Consistency training: the model reads each batch twice, with different noise, and is trained
    to predict the same both times. This helps most on small corpora. A step takes about twice as
    long."""

    method: Literal["r_drop", "sim_cut", "cutoff"] | None = None
    """What differs between the two passes, and how they are compared. In all three, the dropout of
    the passes differs, and a divergence is added to the translation loss. With the last two, some
    embeddings of the second pass are also zero.
    r_drop   the symmetric KL divergence; both passes are trained to translate
    sim_cut  the KL divergence of the second from the first, which is trained to translate
    cutoff   the Jensen-Shannon divergence; both passes are trained to translate
    null turns consistency training off. The papers are Liang et al. 2021 (arXiv 2106.14448), Gao et
    al. 2022 (2206.02368) and Shen et al. 2020 (2009.13818)."""

    weight: Annotated[float, Field(gt=0, le=1000)] | None = None
    """The weight of the divergence. null means the value of the papers: 5 with r_drop, 3 with
    sim_cut, 1 with cutoff."""

    cut: Probability = 0.05
    """The share of the embeddings, on both sides, that are zero with sim_cut and cutoff."""

    @property
    def is_on(self) -> bool:
        """Whether training uses it."""
        return self.method is not None

    @property
    def passes(self) -> int:
        """How often training reads each batch."""
        return 2 if self.is_on else 1

    @field_validator("weight")
    @classmethod
    def _default_weight(cls, weight: float | None, info: ValidationInfo) -> float | None:
        return DEFAULT_WEIGHT.get(info.data.get("method")) if weight is None else weight


def rules(config: Any) -> Problems:
    """
    - `consistency.method` cannot be combined with `model.non_autoregressive`.
    - `consistency.weight` needs `consistency.method`.
    """
    reason = "its masks would differ between the two passes"
    yield from needs(config, "consistency.method", "model.non_autoregressive", None, reason)
    if config.consistency.weight is not None and not config.consistency.is_on:
        message = "needs consistency.method: r_drop, sim_cut or cutoff"
        yield ("consistency.weight", "consistency.method"), message
