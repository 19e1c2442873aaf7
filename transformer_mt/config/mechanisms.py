"""The sections of the mechanisms that training can use: consistency, noise in words, scheduled
sampling and guided attention."""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from transformer_mt.config.section import (
    NaturalNumber,
    PositiveFloat,
    PositiveInt,
    Probability,
    Section,
)


class Heads(NamedTuple):
    """The first `heads` heads of one decoder layer; the first layer is 0."""

    layer: int
    heads: int

    @classmethod
    def nearest_to_alignment(cls, num_layers: int, num_heads: int) -> "Heads":
        """All heads of the last layer but one. Without guidance, this layer's attention is the
        closest to a word alignment (Garg et al. 2019, arXiv 1909.02074, section 3.2)."""
        return cls(max(num_layers - 2, 0), num_heads)


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
        weights: dict[str | None, float] = {"r_drop": 5.0, "sim_cut": 3.0, "cutoff": 1.0}
        return weights.get(info.data.get("method")) if weight is None else weight


class WordNoiseConfig(Section):
    """Word dropout and replacement: the model is trained on text in which some subwords are missing
    or wrong (Takase and Kiyono 2021, arXiv 2104.01853). It costs almost no time."""

    source_dropout: Probability = 0.0
    """The share of the source subwords whose embeddings are zero."""

    target_dropout: Probability = 0.0
    """The share of the target subwords whose embeddings are zero when the decoder reads them."""

    source_replacement: Probability = 0.0
    """The share of the source subwords that are replaced by random ones."""

    target_replacement: Probability = 0.0
    """The share of the target subwords that are replaced by random ones when the decoder reads
    them. The decoder is still trained to predict the true ones."""

    sentences: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the sentences that get noise. UniDrop leaves half of the sentences as they are
    (Wu et al. 2021, arXiv 2104.04946)."""

    @property
    def is_on(self) -> bool:
        """Whether any of the shares is above 0."""
        dropout = self.source_dropout or self.target_dropout
        return bool(dropout or self.source_replacement or self.target_replacement)


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
        # With these (and the default slope), the share of true words is one half after 5,000 steps
        # of linear decay, and after about 6,900 steps of the other two.
        defaults: dict[str | None, float] = {
            "linear": 1.0,
            "exponential": 0.9999,
            "inverse_sigmoid": 1000.0,
        }
        return defaults.get(info.data.get("decay")) if k is None else k


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
        weights: dict[str | None, float] = {"diagonal": 1.0, "alignment": 0.05}
        return weights.get(info.data.get("by")) if weight is None else weight

    def guided_heads(self, decoder_layers: int) -> Heads:
        """The heads that are guided, in a decoder of so many layers."""
        if self.layer is None:
            return Heads.nearest_to_alignment(decoder_layers, self.heads)
        return Heads(self.layer - 1, self.heads)
