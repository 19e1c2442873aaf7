"""The config section `guided_attention`."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from transformer_mt.config.heads import Heads
from transformer_mt.config.section import PositiveInt, Problems, Section, needs

# The weight of the loss in the papers.
DEFAULT_WEIGHT = {"diagonal": 1.0, "alignment": 0.05}


class GuidedAttentionConfig(Section):
    """Guided attention: an extra loss for some heads of the decoder's attention to the source. See
    configs/guided_attention.yaml."""

    by: Literal["diagonal", "alignment"] | None = None
    """Where the heads should look.
    diagonal   at the same relative position in the sentence
    alignment  at the words that the file `alignments` gives
    null turns guided attention off."""

    alignments: str | None = None
    """The file of word alignments. It has one line per line of the training text, with pairs of
    word numbers from 0, source first: 0-0 1-2 2-1. Spaces separate words. In text with BPE applied,
    tokens that @@ joins are one word. In languages without spaces, such as zh and ja, each subword
    is a word."""

    weight: Annotated[float, Field(gt=0, le=1000)] | None = None
    """The weight of this loss; the translation loss has weight 1. null means 1.0 with diagonal and
    0.05 with alignment, as in the papers."""

    layer: PositiveInt | None = None
    """The decoder layer of the heads, counted from 1. null means the last layer but one."""

    heads: PositiveInt = 1
    """The number of guided heads. With `by: alignment`, the commands `align` and `translate
    --alignment` read the alignment from these heads."""

    width: Annotated[float, Field(ge=1e-3, le=100)] = 0.2
    """The width of the diagonal, as a share of the sentence length."""

    @property
    def is_on(self) -> bool:
        """Whether training uses it."""
        return self.by is not None

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
    """
    - `guided_attention.by: alignment` and `guided_attention.alignments` need each other.
    - `guided_attention.layer` must be at most the number of decoder layers
      (`model.num_decoder_layers`, or `model.num_layers`), and `guided_attention.heads` at most
      `model.num_heads`.
    - `guided_attention.by: alignment` cannot be combined with `subword.type: word`, and needs
      `subword.normalization: identity` or nfc (unless `subword.type` is vocabulary).
    - `guided_attention.by` cannot be combined with `scheduled_sampling.decay` or
      `subword.sampling`.
    - `guided_attention.alignments` cannot be combined with texts of `data.train` that have a tag or
      are reversed.
    """
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
    # NFC leaves every space as it is.
    if guided.by == "alignment" and subword.type != "vocabulary" and subword.normalization != "nfc":
        reason = "others may split or join words, which the alignments count"
        yield from needs(config, option, "subword.normalization", "identity", reason)
    if guided.alignments and not all(text.is_plain for text in config.data.texts):
        message = "its links count the words of text without tags, which is not reversed"
        yield ("guided_attention.alignments", "data.train"), message
    for key, reason in (
        ("scheduled_sampling.decay", "it guides from true words, and others replace them"),
        ("subword.sampling", "it guides from the subwords that the corpus is encoded in"),
    ):
        yield from needs(config, option, key, None, reason)
