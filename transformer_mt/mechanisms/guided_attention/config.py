"""The config section `guided_attention`."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from transformer_mt.config.heads import Heads
from transformer_mt.config.section import PositiveInt, Problems, Section, needs

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


def rules(config: Any) -> Problems:
    guided, subword, model = config.guided_attention, config.subword, config.model
    option = "guided_attention.by"
    if guided.by == "alignment" and guided.alignments is None:
        message = "guided_attention.by: alignment needs the file with the alignments"
        yield ("guided_attention.alignments", option), message
    yield from needs(config, "guided_attention.alignments", option, "alignment")
    if guided.by and (guided.layer or 0) > model.decoder_layers:
        keys = "guided_attention.layer", option, "model.num_decoder_layers", "model.num_layers"
        yield keys, f"the model has {model.decoder_layers} decoder layers"
    if guided.by and guided.heads > model.num_heads:
        keys = "guided_attention.heads", option, "model.num_heads"
        yield keys, f"the model has {model.num_heads} heads"
    if guided.by == "alignment" and subword.type == "word":
        message = "for which several unknown words in a row are one"
        yield (option, "subword.type"), f"needs a subword.type other than word, {message}"
    if guided.by == "alignment" and subword.type != "vocabulary":
        reason = "others may split or join words, which the alignments count"
        yield from needs(config, option, "subword.normalization", "identity", reason)
    for key, reason in (
        ("scheduled_sampling.decay", "it guides from true words, and others replace them"),
        ("subword.sampling", "it guides from the subwords that the corpus is encoded in"),
    ):
        yield from needs(config, option, key, None, reason)
