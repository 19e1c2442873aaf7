"""The YAML schema: one class per section, with every key described. `config.rules` has the rules
between keys.

`config.section` says what form the descriptions have. After a change of them, run
scripts/write_reference.py.
"""

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from transformer_mt.config.decoding import DecodingConfig, EvaluationConfig
from transformer_mt.config.section import (
    NaturalNumber,
    NonEmptyText,
    PositiveFloat,
    PositiveInt,
    Probability,
    Section,
    default_by,
)
from transformer_mt.config.text import DataConfig, SubwordConfig

# A layer of width 65,536 has weights of 17 GB; nobody has trained 1,000 layers.
LayerCount = Annotated[int, Field(gt=0, le=1000)]
Width = Annotated[int, Field(gt=0, le=2**16)]
# A factor of 1 would never forget, and Adam would divide by zero. Float32 may round larger numbers
# than this to 1.
Decay = Annotated[float, Field(ge=0, le=0.999999)]
Weight = Annotated[float, Field(gt=0, le=1000)] | None

# The widths of a head: paddle.nn.functional.scaled_dot_product_attention chooses FlashAttention for
# multiples of 8 up to 256 (nn/functional/sdpa.py of Paddle 3.3.1, check_head_dim_size_flash).
STEP, LARGEST = 8, 256


def takes_head_width(width: int) -> bool:
    """Returns whether the fused attention takes heads of this width."""
    return width % STEP == 0 and 0 < width <= LARGEST


# The gated feed-forward layers, and the activation of each gate.
GATED = {"reglu": "relu", "swiglu": "swish", "geglu": "gelu"}


class ModelConfig(Section):
    """The Transformer. Its defaults are the base model of the paper (Vaswani et al. 2017, arXiv
    1706.03762)."""

    num_layers: LayerCount = 6
    """The number of layers of the encoder, and of the decoder."""

    num_encoder_layers: LayerCount | None = None
    """The number of layers of the encoder. null means num_layers."""

    num_decoder_layers: LayerCount | None = None
    """The number of layers of the decoder. null means num_layers. A model with fewer decoder layers
    translates faster."""

    d_model: Width = 512
    """The width of the model."""

    num_heads: PositiveInt = 8
    """The number of attention heads. It must divide d_model."""

    d_ff: Width = 2048
    """The width of the feed-forward layers."""

    activation: Literal["relu", "swish", "gelu", "reglu", "swiglu", "geglu"] = "relu"
    """The activation in the feed-forward layers.
    relu                  `max(0, x)`, as in the paper
    swish                 `x * sigmoid(x)`, also called SiLU; most OPUS-MT models have it
    gelu                  `x` times the probability that a normal variable is below it
    reglu, swiglu, geglu  the same three, each in a gate
    A gate is a third matrix, so these layers have half as many parameters again (Shazeer 2020,
    arXiv 2002.05202)."""

    norm: Literal["pre", "post"] = "post"
    """Where the layer normalisation is.
    post  `LayerNorm(x + sublayer(x))`, as in the paper
    pre   `x + sublayer(LayerNorm(x))`, which is stable even with many layers or a short warm-up
    """

    norm_epsilon: Annotated[float, Field(gt=0, le=1e-3)] = 1e-5
    """The term that keeps the layer normalisation from dividing by zero. Models that Marian has
    trained have 1e-9."""

    positions: Literal["sinusoidal", "marian"] = "sinusoidal"
    """The encodings of the positions.
    sinusoidal  sines and cosines with the wavelengths of the paper
    marian      the same with Marian's wavelengths, for models that Marian has trained
    """

    dropout: Probability = 0.1
    """The dropout on the output of each sub-layer."""

    embedding_dropout: Probability | None = None
    """The dropout on the embeddings. null means `dropout`."""

    attention_dropout: Probability = 0.0
    """The dropout on the attention weights."""

    feed_forward_dropout: Probability = 0.0
    """The dropout inside the feed-forward layers."""

    projection_dropout: Probability = 0.0
    """The dropout on the queries, keys and values of attention."""

    output_dropout: Probability = 0.0
    """The dropout on the input of the output layer."""

    layer_dropout: Probability = 0.0
    """The probability with which training leaves out a layer for a batch (LayerDrop, Fan et al.
    2020, arXiv 1909.11556)."""

    tie_embeddings: bool = True
    """Whether the output layer uses the target embedding as its weights. With a joint vocabulary,
    the source embedding is the same too (section 3.4 of the paper)."""

    bias: bool = True
    """Whether the linear layers have biases."""

    output_bias: bool = False
    """Whether the output layer has a bias too, as in Marian's models."""

    copying: bool = False
    """Whether the model can copy subwords of the source to the output. This helps with names and
    numbers that are not in the training text. It needs `subword.joint: true`. See
    configs/copying.yaml."""

    non_autoregressive: Literal["length", "end"] | None = None
    """Whether the model predicts all positions of a translation at once, and then predicts the
    least certain ones again.
    length  the length is predicted first
    end     many positions are predicted, and the output is cut at its end token
    null is the usual model, which predicts one word after another. See
    configs/non_autoregressive.yaml."""

    @property
    def encoder_layers(self) -> int:
        """How many the encoder has."""
        return self.num_encoder_layers or self.num_layers

    @property
    def decoder_layers(self) -> int:
        """How many the decoder has."""
        return self.num_decoder_layers or self.num_layers


class TrainingConfig(Section):
    """How the model is trained. A step is one update of the weights. If training is stopped in any
    way, the same command continues from the newest checkpoint."""

    max_steps: PositiveInt | None = None
    """The number of steps. Training ends at max_steps or max_epochs, whichever comes first. At
    least one of them must be given."""

    max_epochs: PositiveInt | None = None
    """The number of epochs, which are passes over the training text."""

    batch_tokens: PositiveInt = 4096
    """The size of a step: the number of padded target tokens, over all processes together. So one
    recipe trains the same model on one core, on two, or on eight GPUs."""

    device_tokens: PositiveInt = 4096
    """The number of padded target tokens that one process computes at once. Lower it if memory runs
    out. If batch_tokens is larger, a step adds up the gradients of several batches."""

    length_multiple: PositiveInt | None = None
    """The padded length of a batch is rounded up to a multiple of this number. The tensor cores of
    a GPU are fast if sizes are multiples of 8. Besides, batches then have few different shapes, for
    which memory and kernels are reused. The added padding counts as tokens of batch_tokens. A run
    keeps the multiple that it began with. null means 8 on a GPU and 1 on a CPU."""

    optimizer: Literal["adam", "adamw", "muon", "sgd"] = "adam"
    """The rule that updates the weights.
    adam   Adam, as in the paper
    adamw  Adam with decoupled weight decay (see weight_decay)
    muon   Muon for the matrices of the layers, and Adam for all other weights
    sgd    stochastic gradient descent with momentum
    """

    schedule: Literal["noam", "inverse_sqrt", "linear", "cosine", "constant"] = "noam"
    """The schedule of the learning rate. It rises linearly for warmup_steps, up to learning_rate.
    noam, inverse_sqrt  it then falls with `1 / sqrt(step)`
    linear              it then falls along a line, to 0 at decay_steps
    cosine              it then falls along half a cosine wave, to 0 at decay_steps
    constant            it then stays the same
    With noam, learning_rate can be null, as in the paper."""

    warmup_steps: NaturalNumber = 4000
    """The number of steps in which the learning rate rises."""

    decay_steps: PositiveInt | None = None
    """The step at which the learning rate of linear and cosine is 0. It is usually max_steps. It is
    a key of its own, so that max_steps may change when a run is resumed."""

    learning_rate: Annotated[float, Field(gt=0, le=100)] | None = None
    """The learning rate at the end of the warm-up. null is possible with noam only, and means
    `d_model^-0.5 * warmup_steps^-0.5`, as in the paper."""

    betas: Annotated[list[Decay], Field(min_length=2, max_length=2)] = Field([0.9, 0.98])
    """The two decay rates of adam and adamw, and of Adam's part of muon."""

    # In float32, the square of a small gradient is 0, and epsilon alone is the divisor.
    epsilon: Annotated[float, Field(ge=1e-20, le=1)] = 1e-9
    """The term that keeps adam, adamw and Adam's part of muon from dividing by zero."""

    momentum: Decay = 0.9
    """The momentum of sgd and muon. Muon's authors use 0.95."""

    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0
    """The weight decay of adamw, and of the matrices that muon updates: each step also shrinks the
    weights by this number times the learning rate."""

    label_smoothing: Probability = 0.1
    """The share of the labels' probability that is spread over the whole vocabulary."""

    clip_norm: PositiveFloat | None = None
    """The largest norm of a gradient. null means no limit."""

    log_every: PositiveInt = 50
    """The number of steps between two reports of the training loss, which are lines on the screen
    and in metrics.jsonl."""

    log_to: list[Literal["visualdl", "tensorboard"]] = Field(["visualdl"])
    """The programs that can draw the run while it trains. Each gets files in a folder of its name
    in the model directory, which hold what metrics.jsonl holds. See docs/training.md.
    visualdl     Paddle's own
    tensorboard  TensorBoard; to look at the files, it must be installed
    """

    validate_every: PositiveInt = 1000
    """The number of steps between two validations. A validation measures the loss and the
    scores of the dev set."""

    save_every: PositiveInt = 1000
    """The number of steps between two checkpoints."""

    keep_last: PositiveInt = 5
    """The number of newest checkpoints that are kept."""

    keep_best: PositiveInt = 1
    """The number of best checkpoints that are kept."""

    best_metric: Literal["bleu", "chrf", "chrf++", "ter", "loss", "perplexity"] = "bleu"
    """The metric of the dev set that decides which checkpoint is the best. Translation uses the
    best checkpoint. If two have the same score, chrF decides, and then the loss. A BLEU below 1
    counts as 0 here.
    bleu, chrf, chrf++     the highest score is the best
    ter, loss, perplexity  the lowest value is the best
    """

    patience: PositiveInt | None = None
    """Training ends after this number of validations in a row without a new best score. null means
    that it does not end early."""

    average_last: PositiveInt | None = None
    """Averages the weights of this number of newest checkpoints at the end of training. The final
    score and translation use the average, or the best checkpoint if that is better on the dev set
    by more than chance. null means that they use the best checkpoint."""

    interpolate: bool = False
    """Whether fine-tuning ends with mixes of the weights of the model `init_from` and of the
    trained one, from 20 % to 80 % of the latter (Wortsman et al. 2022, arXiv 2109.01903, section
    3). Translation uses the best of them on the dev set, or with `data.general_dev`, the one with
    the best mean of the scores of both sets. Such a mix often keeps most of what fine-tuning has
    gained and loses little of what the model could do before."""

    ema: Annotated[Decay, Field(gt=0)] | None = None
    """The decay of the exponential moving average of the weights, such as 0.999. Validation,
    checkpoints and translation then use the average instead of the weights of the last update. null
    turns it off."""

    max_skipped: PositiveInt = 10
    """The number of skipped updates in a row after which training stops. An update is skipped if
    its loss or gradient is not finite."""

    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """The precision of matrix products. The weights stay in float32. On a CPU, bfloat16 is the
    precision of linear layers and of the output layer, and attention stays in float32.
    float32   the usual precision
    bfloat16  half precision on a GPU (Ampere or newer) or a CPU with AVX512_BF16 or AMX
    float16   half precision on a GPU
    """

    recompute: bool = False
    """Saves memory and costs time: the backward pass computes the layers again, instead of storing
    their results."""

    devices: Annotated[int, Field(gt=0, le=10_000)] | None = None
    """The number of processes. null means one per GPU, or one per core on a CPU. On several
    machines, the launcher's --nproc_per_node takes the place of this key."""

    gradient_sum_precision: Literal["float32", "bfloat16"] = "float32"
    """The precision in which several processes send each other their gradients, to add them up.
    float32   no loss of precision
    bfloat16  half as much data, but each gradient is rounded to 8 bits
    """

    sharding: bool = False
    """Whether each of several processes keeps only its share of the optimiser's state. This saves
    memory for models that do not fit otherwise, and costs time for sending weights. The trained
    model is the same."""

    init_from: NonEmptyText | None = None
    """The directory of another model, for fine-tuning. Training starts with its weights and its
    subwords, instead of random weights and new subwords. The keys of `model` that the recipe does
    not give have the values of that model. The optimiser starts from the beginning. The first
    validation comes before the first step, and the checkpoint step_0 is kept. At the end, its
    translations of the test set are compared with those of the trained model."""

    freeze: list[NonEmptyText] = Field([])
    """The weights that keep their values, by patterns of their names, such as
    `["encoder.*", "*embedding*"]`. An asterisk stands for any characters. (A pattern needs its
    quotes.) A step is faster and needs less memory, because frozen weights have no gradient and no
    optimiser state. See docs/fine-tuning.md."""

    learning_rate_factors: dict[NonEmptyText, Annotated[float, Field(gt=0, le=1000)]] = Field({})
    """Factors of the learning rate of some weights, by patterns of their names as in `freeze`. With
    `{"*embedding*": 0.1}`, embeddings change a tenth as fast. If several patterns fit a name, the
    first one counts."""

    seed: NaturalNumber = 1
    """The seed of initialisation, dropout, batches and held-out pairs."""

    @property
    def batch_plan(self) -> tuple[int, int]:
        """How many batches an update adds up, and the padded tokens of each."""
        count = -(-self.batch_tokens // self.device_tokens)
        return count, self.batch_tokens // count


class Heads(NamedTuple):
    """The first `heads` heads of one decoder layer; the first layer is 0."""

    layer: int
    heads: int

    @classmethod
    def nearest_to_alignment(cls, num_layers: int, num_heads: int) -> "Heads":
        """All heads of the last layer but one. Without guidance, this layer's attention is the
        closest to a word alignment (Garg et al. 2019, arXiv 1909.02074, section 3.2)."""
        return cls(max(num_layers - 2, 0), num_heads)


class Mechanism(Section):
    """A section of a mechanism that training can use."""

    @property
    def is_on(self) -> bool:
        """Whether training uses it: whether its first key is given."""
        _, value = next(iter(self))
        return value is not None


class AdapterConfig(Mechanism):
    """Adapters, for fine-tuning a large model with little memory: two narrow matrices beside some
    linear layers are trained, and all weights of the model are kept (LoRA, Hu et al. 2021, arXiv
    2106.09685). The output of such a layer becomes `x W + b + (alpha / rank) dropout(x) A B`. A
    checkpoint holds A and B alone, which are a few megabytes. Translation uses the sum
    `W + (alpha / rank) A B`, so it is as fast as before. See docs/fine-tuning.md."""

    rank: Annotated[int, Field(gt=0, le=1024)] | None = None
    """The number of columns of A and of rows of B, such as 8 or 16. null turns adapters off."""

    alpha: PositiveFloat | None = None
    """The scale of the adapters is `alpha / rank`. null means `2 * rank`."""

    dropout: Probability = 0.0
    """The dropout on the input of the adapters."""

    weights: Annotated[list[NonEmptyText], Field(min_length=1)] = Field(
        default=["*query_projection*", "*value_projection*", "*feed_forward*"]
    )
    """The linear layers that get adapters, by patterns of the names of their weights."""

    @property
    def scale(self) -> float:
        """The factor of A B."""
        return 2.0 if self.alpha is None else self.alpha / self.rank


class ConsistencyConfig(Mechanism):
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

    weight: Annotated[
        Weight, default_by("method", {"r_drop": 5.0, "sim_cut": 3.0, "cutoff": 1.0})
    ] = None
    """The weight of the divergence. null means the value of the papers: 5 with r_drop, 3 with
    sim_cut, 1 with cutoff."""

    cut: Probability = 0.05
    """The share of the embeddings, on both sides, that are zero with sim_cut and cutoff."""

    @property
    def passes(self) -> int:
        """How often training reads each batch."""
        return 2 if self.is_on else 1


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
        """Whether any share of the subwords is above 0."""
        return any(share for key, share in self if key != "sentences")


class ScheduledSamplingConfig(Mechanism):
    """Scheduled sampling: the decoder is trained on some of its own predictions in place of the
    true previous words, so that it learns to continue after its own mistakes. See
    configs/scheduled_sampling.yaml."""

    decay: Literal["linear", "exponential", "inverse_sigmoid"] | None = None
    """The formula for the share of true words, where i is the number of steps since `start`.
    linear           `k - slope * i`
    exponential      `k ^ i`
    inverse_sigmoid  `k / (k + exp(i / k))`
    null turns scheduled sampling off."""

    # With these (and the default slope), the share of true words is one half after 5,000 steps of
    # linear decay, and after about 6,900 steps of the other two.
    k: Annotated[
        PositiveFloat | None,
        default_by("decay", {"linear": 1.0, "exponential": 0.9999, "inverse_sigmoid": 1000.0}),
    ] = None
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


class GuidedAttentionConfig(Mechanism):
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

    weight: Annotated[Weight, default_by("by", {"diagonal": 1.0, "alignment": 0.05})] = None
    """The weight of this loss; the translation loss has weight 1. null means 1.0 with diagonal and
    0.05 with alignment, as in the papers."""

    layer: PositiveInt | None = None
    """The decoder layer of the heads, counted from 1. null means the last layer but one."""

    heads: PositiveInt = 1
    """The number of guided heads. With `by: alignment`, the commands `align` and `translate
    --alignment` read the alignment from these heads."""

    width: Annotated[float, Field(ge=1e-3, le=100)] = 0.2
    """The width of the diagonal, as a share of the sentence length."""

    def guided_heads(self, decoder_layers: int) -> Heads:
        """The heads that are guided, in a decoder of so many layers."""
        if self.layer is None:
            return Heads.nearest_to_alignment(decoder_layers, self.heads)
        return Heads(self.layer - 1, self.heads)


class Config(Section):
    """A whole recipe."""

    model_dir: NonEmptyText
    """The folder for everything that the run writes. These are the values of all keys, the subword
    model, the checkpoints and the metrics. The folder can be moved later. A relative path starts at
    the folder in which the command is typed. In this path and all others of a recipe, `~` at the
    start is the home folder, and `$NAME` is an environment variable."""

    data: DataConfig
    subword: SubwordConfig = Field(default_factory=SubwordConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig
    adapter: AdapterConfig = Field(default_factory=AdapterConfig)
    consistency: ConsistencyConfig = Field(default_factory=ConsistencyConfig)
    word_noise: WordNoiseConfig = Field(default_factory=WordNoiseConfig)
    scheduled_sampling: ScheduledSamplingConfig = Field(default_factory=ScheduledSamplingConfig)
    guided_attention: GuidedAttentionConfig = Field(default_factory=GuidedAttentionConfig)
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)

    @property
    def tags(self) -> list[str]:
        """The words that stand before texts of a kind."""
        of_texts = (text.tag for text in self.data.texts if text.tag is not None)
        return list(dict.fromkeys([*of_texts, *self.subword.user_symbols]))

    @property
    def alignment_heads(self) -> Heads:
        """The heads whose mean attention shows which words belong together.

        These are the guided heads if they were guided by alignments. (Heads that are guided to the
        diagonal say little where words change places.)
        """
        layers = self.model.decoder_layers
        if self.guided_attention.by == "alignment":
            return self.guided_attention.guided_heads(layers)
        return Heads.nearest_to_alignment(layers, self.model.num_heads)

    @property
    def layers_read_by_the_loss(self) -> frozenset[int]:
        """The decoder layers, from 0, whose attention weights the loss or the output layer reads.
        Their weights are kept in training, with `recompute` too, and fused attention cannot compute
        them."""
        layers = set()
        if self.model.copying:
            layers.add(self.model.decoder_layers - 1)
        if self.guided_attention.by is not None:
            layers.add(self.guided_attention.guided_heads(self.model.decoder_layers).layer)
        return frozenset(layers)


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
