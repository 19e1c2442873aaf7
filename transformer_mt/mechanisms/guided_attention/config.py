"""The config section `guided_attention`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from transformer_mt.config.heads import Heads
from transformer_mt.config.section import PositiveInt, Rule, Section, needs

# The weight of the loss in the papers.
DEFAULT_WEIGHT = {"diagonal": 1.0, "alignment": 0.05}


class GuidedAttentionConfig(Section):
    """A loss that teaches heads of the decoder where in the source to look."""

    by: Literal["diagonal", "alignment"] | None = Field(
        None, description="where to: the same place in the sentence, or as alignments say"
    )
    alignments: str | None = Field(
        None, description="Pharaoh file (0-0 1-2 ...), line for line with the training text"
    )
    weight: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="of this loss; null: 1.0 with diagonal, 0.05 with alignment"
    )
    layer: PositiveInt | None = Field(
        None, description="of the decoder, from 1; null: the last but one"
    )
    heads: PositiveInt = Field(1, description="how many of the layer's heads are guided")
    width: Annotated[float, Field(ge=1e-3, le=100)] = Field(
        0.2, description="of the diagonal, as a share of the length"
    )

    @field_validator("weight")
    @classmethod
    def _default_weight(cls, weight: float | None, info: ValidationInfo) -> float | None:
        return DEFAULT_WEIGHT.get(info.data.get("by")) if weight is None else weight

    def guided_heads(self, decoder_layers: int) -> Heads:
        """The heads that are guided, in a decoder of so many layers."""
        if self.layer is None:
            return Heads.nearest_to_alignment(decoder_layers, self.heads)
        return Heads(self.layer - 1, self.heads)


RULES = [
    Rule(
        "guided_attention.alignments",
        lambda c: c.guided_attention.by == "alignment" and c.guided_attention.alignments is None,
        "guided_attention.by: alignment needs the file with the alignments",
    ),
    Rule(
        "guided_attention.alignments",
        lambda c: (
            c.guided_attention.by != "alignment" and c.guided_attention.alignments is not None
        ),
        "needs guided_attention.by: alignment",
    ),
    Rule(
        "guided_attention.layer",
        lambda c: (
            c.guided_attention.by and (c.guided_attention.layer or 0) > c.model.decoder_layers
        ),
        "the model has {model.decoder_layers} decoder layers",
    ),
    Rule(
        "guided_attention.heads",
        lambda c: c.guided_attention.by and c.guided_attention.heads > c.model.num_heads,
        "the model has {model.num_heads} heads",
    ),
    Rule(
        "guided_attention.by",
        lambda c: c.guided_attention.by == "alignment" and c.subword.type == "word",
        "needs a subword.type other than word, for which several unknown words in a row are one",
    ),
    Rule(
        "guided_attention.by",
        lambda c: (
            c.guided_attention.by == "alignment"
            and c.subword.type != "vocabulary"
            and c.subword.normalization != "identity"
        ),
        "needs subword.normalization: identity: others may split or join words, which the "
        "alignments count",
    ),
    needs(
        *("guided_attention.by", "scheduled_sampling.decay", None),
        "it guides from true words, and others replace them",
    ),
    needs(
        *("guided_attention.by", "subword.sampling", None),
        "it guides from the subwords that the corpus is encoded in",
    ),
]
