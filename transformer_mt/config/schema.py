"""The YAML schema: one class a section, every key described, and what goes together with what."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError


def _problem(message: str) -> PydanticCustomError:
    """An error about a combination of keys, or one with a reason; pydantic reports it under the key
    being validated."""
    return PydanticCustomError("combination", "{message}", {"message": message})


def _at_least(least: float, reason: str) -> AfterValidator:
    """A bound with the reason for it, where one would ask."""

    def check(value: float) -> float:
        if value < least:
            raise _problem(f"expected at least {least:g}: {reason}")
        return value

    return AfterValidator(check)


def _at_most(most: float, reason: str) -> AfterValidator:
    """As `_at_least`."""

    def check(value: float) -> float:
        if value > most:
            raise _problem(f"expected at most {most:g}: {reason}")
        return value

    return AfterValidator(check)


# Numbers are bounded where arithmetic would break or memory run out at once, far beyond what is of
# use.

# Larger whole numbers than this fit in no array that they would count.
PositiveInt = Annotated[int, Field(gt=0, lt=2**31)]
NaturalNumber = Annotated[int, Field(ge=0, lt=2**31)]
# The four special subwords, and at least one for text. SentencePiece crashes from some 2 * 10^9 on.
VocabularySize = Annotated[int, Field(gt=4, le=10_000_000)]
# Each hypothesis of a beam holds a cache of its own.
BeamSize = Annotated[int, Field(gt=0, le=1000)]
# A layer of a width of 65,536 has weights of 17 GB; nobody has trained 1,000 layers.
LayerCount = Annotated[int, Field(gt=0, le=1000)]
Width = Annotated[int, Field(gt=0, le=2**16)]
# The longest target, in subwords, whose length a model can predict.
LONGEST_TARGET = 1024
Probability = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0)]
# A factor of 1 would never forget, and Adam divide by zero.
Decay = Annotated[float, Field(ge=0), _at_most(0.999999, "float32 takes what is nearer to 1 for 1")]
# Of the lengths of output and input: longer ones than this would fill the memory.
LengthRatio = Annotated[float, Field(le=100)]
ExtraLength = Annotated[int, Field(ge=0, le=10_000)]


class Section(BaseModel):
    """A section of the config: unknown keys and values of a wrong type are errors.

    Defaults are validated too: which of them are possible depends on the keys that are given.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False
    )


class DataConfig(Section):
    """Where the parallel text is, and which pairs of it are used."""

    dataset: Literal["files", "wmt14ende", "multi30k"] = Field(
        "files", description="files: your own; wmt14ende, multi30k: downloaded, or read from root"
    )
    root: str | None = Field(None, description="folder with the data")
    train: str = Field("train", description="prefix of PREFIX.LANG[.gz], a .tsv, or a split's name")
    dev: str | None = Field(None, description="as train; null: pairs are held out of train")
    test: str | None = Field(None, description="as train; null: pairs are held out of train")
    source_lang: str = Field(..., min_length=1, description="ending of the source files")
    target_lang: str = Field(..., min_length=1, description="ending of the target files")
    held_out: NaturalNumber = Field(
        1000, description="pairs taken from train for each of dev and test that is null"
    )
    max_length: PositiveInt = Field(256, description="longest training sentence, in subwords")
    max_length_ratio: Annotated[float, Field(ge=1)] | None = Field(
        6.0, description="longest ratio of the two sides' lengths in training; null: any"
    )
    drop_duplicates: bool = Field(False, description="drop exact repetitions of a training pair")
    cache: str = Field("data/cache", description="folder for encoded corpora")

    @field_validator("root")
    @classmethod
    def _files_need_a_root(cls, root: str | None, info) -> str | None:
        if root is None and info.data.get("dataset") == "files":
            raise _problem("data.dataset: files needs the folder that holds them")
        return root

    @field_validator("train", "dev", "test")
    @classmethod
    def _a_known_split(cls, value: str | None, info) -> str | None:
        splits = ("train", "dev", "test")
        if info.data.get("dataset") in ("wmt14ende", "multi30k") and value not in (*splits, None):
            raise _problem(f"{info.data['dataset']} has the splits {', '.join(splits)}")
        return value

    @field_validator("target_lang")
    @classmethod
    def _two_languages(cls, target_lang: str, info) -> str:
        if target_lang == info.data.get("source_lang"):
            raise _problem("must differ from data.source_lang")
        known = {"wmt14ende": {"en", "de"}, "multi30k": {"en", "de"}}.get(info.data.get("dataset"))
        pair = {info.data.get("source_lang", target_lang), target_lang}
        if known and not pair <= known:
            raise _problem(f"{info.data['dataset']} has the languages en and de")
        return target_lang


class SubwordConfig(Section):
    """How text becomes subwords."""

    type: Literal["bpe", "unigram", "char", "word", "vocabulary"] = Field(
        "bpe", description="a SentencePiece model; vocabulary: text that has its BPE applied"
    )
    vocab_size: VocabularySize = Field(8000, description="subwords, special ones included")
    joint: bool = Field(True, description="one vocabulary for both sides")
    source_vocab_size: VocabularySize | None = Field(None, description="null: vocab_size")
    target_vocab_size: VocabularySize | None = Field(None, description="null: vocab_size")
    character_coverage: Annotated[
        float, Field(gt=0, le=1), _at_least(0.98, "SentencePiece takes no less")
    ] = Field(1.0, description="share of the text's characters that the vocabulary must hold")
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = Field(
        "identity", description="SentencePiece's normalisation rule; identity keeps the text"
    )
    sampling: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="bpe: BPE-dropout's rate; unigram: alpha of sampling; null: none"
    )
    vocabulary: str | None = Field(None, description="vocabulary file, one type a line")

    @field_validator("sampling")
    @classmethod
    def _only_some_can_be_sampled(cls, sampling: float | None, info) -> float | None:
        if sampling is not None and info.data.get("type") not in ("bpe", "unigram", None):
            raise _problem("needs subword.type: bpe or unigram")
        return sampling

    @field_validator("joint")
    @classmethod
    def _a_vocabulary_is_joint(cls, joint: bool, info) -> bool:
        if not joint and info.data.get("type") == "vocabulary":
            raise _problem("subword.type: vocabulary is one vocabulary for both sides")
        return joint

    @field_validator("source_vocab_size", "target_vocab_size")
    @classmethod
    def _apart_only_if_not_joint(cls, size: int | None, info) -> int | None:
        if size is not None and info.data.get("joint"):
            raise _problem("a size of its own needs subword.joint: false")
        return size

    @field_validator("vocabulary")
    @classmethod
    def _a_file_only_for_its_type(cls, vocabulary: str | None, info) -> str | None:
        if vocabulary is not None and info.data.get("type", "vocabulary") != "vocabulary":
            raise _problem("a vocabulary file needs subword.type: vocabulary")
        return vocabulary


class ModelConfig(Section):
    """The Transformer."""

    num_layers: LayerCount = Field(6, description="layers of the encoder and of the decoder")
    num_encoder_layers: LayerCount | None = Field(None, description="null: num_layers")
    num_decoder_layers: LayerCount | None = Field(None, description="null: num_layers")
    d_model: Width = Field(512, description="width of the model")
    num_heads: PositiveInt = Field(8, description="attention heads")
    d_ff: Width = Field(2048, description="width of the feed-forward layers")
    norm: Literal["pre", "post"] = Field("post", description="post: the paper's")
    dropout: Probability = Field(0.1, description="of each sub-layer's output")
    embedding_dropout: Probability | None = Field(None, description="null: dropout")
    attention_dropout: Probability = Field(0.0, description="of the attention weights")
    feed_forward_dropout: Probability = Field(0.0, description="inside the feed-forward layers")
    tie_embeddings: bool = Field(
        True, description="output layer = target embedding (= source embedding if joint)"
    )
    bias: bool = Field(True, description="biases in the linear layers")
    copying: bool = Field(False, description="copies subwords of the source (pointer-generator)")
    non_autoregressive: Literal["length", "end"] | None = Field(
        None, description="all positions at once; length: predicted first, end: cut at the end"
    )

    @property
    def encoder_layers(self) -> int:
        """How many the encoder has."""
        return self.num_encoder_layers or self.num_layers

    @property
    def decoder_layers(self) -> int:
        """How many the decoder has."""
        return self.num_decoder_layers or self.num_layers

    @field_validator("non_autoregressive")
    @classmethod
    def _a_copy_follows_something(cls, kind: str | None, info) -> str | None:
        if kind is not None and info.data.get("copying"):
            raise _problem("model.copying needs the words before; one of the two must be off")
        return kind

    @field_validator("num_heads")
    @classmethod
    def _heads_divide_the_width(cls, num_heads: int, info) -> int:
        d_model = info.data.get("d_model")
        if d_model is not None and d_model % num_heads:
            raise _problem(f"must divide model.d_model ({d_model})")
        return num_heads


class TrainingConfig(Section):
    """The optimisation, its schedule, and its intervals (in steps: updates of the weights)."""

    max_steps: PositiveInt | None = Field(None, description="stop after these updates")
    max_epochs: PositiveInt | None = Field(None, description="stop after these passes")
    batch_tokens: PositiveInt = Field(4096, description="padded target tokens of one update")
    device_tokens: PositiveInt = Field(4096, description="how many a process takes at once")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="update rule")
    schedule: Literal["noam", "inverse_sqrt", "constant"] = Field("noam", description="rate")
    warmup_steps: NaturalNumber = Field(4000, description="linear warm-up")
    learning_rate: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="rate at the end of warm-up; null under noam: the paper's"
    )
    betas: Annotated[list[Decay], Field(min_length=2, max_length=2)] = Field(
        [0.9, 0.98], description="of adam and adamw"
    )
    epsilon: Annotated[
        float,
        Field(gt=0, le=1),
        _at_least(
            1e-20, "in float32, the square of a small gradient is 0, which it keeps from dividing"
        ),
    ] = Field(1e-9, description="of adam and adamw")
    momentum: Decay = Field(0.9, description="of sgd")
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(0.0, description="of adamw")
    label_smoothing: Probability = Field(0.1, description="share spread over the vocabulary")
    clip_norm: PositiveFloat | None = Field(None, description="of the gradient; null: none")
    log_every: PositiveInt = Field(50, description="steps between lines of metrics.jsonl")
    validate_every: PositiveInt = Field(1000, description="steps between validations")
    save_every: PositiveInt = Field(1000, description="steps between checkpoints")
    keep_last: PositiveInt = Field(5, description="how many of the last checkpoints stay")
    keep_best: PositiveInt = Field(1, description="how many of the best stay too")
    best_metric: Literal["bleu", "chrf", "loss", "perplexity"] = Field(
        "bleu", description="of the dev set: which checkpoint is the best"
    )
    patience: PositiveInt | None = Field(
        None, description="stop after so many validations without a new best; null: never"
    )
    average_last: PositiveInt | None = Field(
        None, description="average so many of the last checkpoints at the end; null: none"
    )
    max_skipped: PositiveInt = Field(
        10, description="stop after so many updates in a row that are not finite"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="of matrix products; the other two need a GPU"
    )
    recompute: bool = Field(False, description="save memory: compute layers again, backwards")
    devices: Annotated[int, Field(gt=0, le=10_000)] | None = Field(
        None, description="processes; null: one a GPU, or one a CPU core"
    )
    init_from: str | None = Field(
        None, min_length=1, description="MODEL_DIR whose weights and subwords to begin with"
    )
    seed: NaturalNumber = Field(1, description="of everything random")

    @field_validator("max_epochs")
    @classmethod
    def _an_end(cls, max_epochs: int | None, info) -> int | None:
        if max_epochs is None and info.data.get("max_steps", 0) is None:
            raise _problem("give training.max_steps or training.max_epochs")
        return max_epochs

    @field_validator("warmup_steps")
    @classmethod
    def _decay_needs_a_warmup(cls, warmup_steps: int, info) -> int:
        if warmup_steps == 0 and info.data.get("schedule") in ("noam", "inverse_sqrt"):
            raise _problem(f"schedule {info.data['schedule']} needs at least 1")
        return warmup_steps

    @field_validator("learning_rate")
    @classmethod
    def _only_noam_has_a_rate_of_its_own(cls, rate: float | None, info) -> float | None:
        if rate is None and info.data.get("schedule") in ("inverse_sqrt", "constant"):
            raise _problem(f"schedule {info.data['schedule']} needs a rate")
        return rate

    @field_validator("average_last")
    @classmethod
    def _averages_are_of_what_is_kept(cls, average_last: int | None, info) -> int | None:
        kept = info.data.get("keep_last")
        if average_last is not None and kept is not None and average_last > kept:
            raise _problem(f"is more than training.keep_last ({kept})")
        return average_last

    @field_validator("weight_decay")
    @classmethod
    def _only_adamw_decays(cls, weight_decay: float, info) -> float:
        if weight_decay and info.data.get("optimizer") in ("adam", "sgd"):
            raise _problem("needs training.optimizer: adamw")
        return weight_decay


class ScheduledSamplingConfig(Section):
    """Training on the model's own predictions, more and more of them."""

    decay: Literal["linear", "exponential", "inverse_sigmoid"] | None = Field(
        None, description="how the share of true words falls; null: all are true, always"
    )
    k: PositiveFloat | None = Field(None, description="the decay's k; null: see configs/demo.yaml")
    slope: PositiveFloat = Field(1e-4, description="of linear decay, a step")
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
    def _in_the_range_of_its_decay(cls, k: float | None, info) -> float | None:
        decay = info.data.get("decay")
        if k is not None and decay == "exponential" and k >= 1:
            raise _problem("exponential decay needs k below 1")
        if k is not None and decay == "inverse_sigmoid" and k < 1:
            raise _problem("inverse_sigmoid decay needs k of at least 1")
        return k

    @field_validator("backpropagate")
    @classmethod
    def _only_a_mean_has_a_gradient(cls, backpropagate: bool, info) -> bool:
        if backpropagate and info.data.get("mixing") in ("argmax", "sampled"):
            raise _problem("a choice has no gradient; it needs scheduled_sampling.mixing: top_k")
        return backpropagate


class GuidedAttentionConfig(Section):
    """A loss that tells heads of the decoder where in the source to look."""

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

    @field_validator("alignments")
    @classmethod
    def _a_file_for_alignments(cls, alignments: str | None, info) -> str | None:
        needed = info.data.get("by") == "alignment"
        if needed and alignments is None:
            raise _problem("guided_attention.by: alignment needs the file with the alignments")
        if alignments is not None and not needed:
            raise _problem("needs guided_attention.by: alignment")
        return alignments

    @property
    def weight_of_loss(self) -> float:
        """Where none is given, that of the paper."""
        return self.weight or {"diagonal": 1.0, "alignment": 0.05}[self.by]


class DecodingConfig(Section):
    """The search."""

    beam_size: BeamSize = Field(5, description="1: greedy")
    length_penalty: Annotated[
        float, Field(ge=0), _at_most(10, "higher powers of a length overflow")
    ] = Field(1.0, description="alpha; 0: none, higher: longer outputs")
    length_penalty_kind: Literal["gnmt", "average"] = Field(
        "gnmt", description="scores are divided by ((5 + length) / 6)^alpha, or length^alpha"
    )
    min_length_ratio: Annotated[LengthRatio, Field(ge=0)] = Field(
        0.0, description="shortest output = ratio * input ..."
    )
    min_length_extra: ExtraLength = Field(0, description="... + extra subwords")
    max_length_ratio: Annotated[LengthRatio, Field(gt=0)] = Field(
        2.0, description="longest output = ratio * input ..."
    )
    max_length_extra: ExtraLength = Field(20, description="... + extra subwords")
    sampling: bool = Field(False, description="draw outputs at random, instead of the best")
    temperature: Annotated[
        float,
        Field(gt=0, le=1000),
        _at_least(
            1e-3, "below it, nothing but the most probable subword is drawn, as with top_k: 1"
        ),
    ] = Field(1.0, description="of sampling; below 1: less random")
    top_k: PositiveInt | None = Field(None, description="draw from the k most probable; null: all")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="draw from the fewest that have this share of the probability"
    )
    seed: NaturalNumber = Field(1, description="of sampling")
    n_best: BeamSize = Field(1, description="outputs of a line; beam search: up to beam_size")
    iterations: Annotated[int, Field(gt=0, le=LONGEST_TARGET)] = Field(
        4, description="of a non-autoregressive model: passes; all but the first mend the output"
    )
    length_candidates: BeamSize = Field(
        3, description="of a non-autoregressive model: lengths that are tried"
    )
    batch_tokens: PositiveInt = Field(2048, description="padded source tokens decoded at once")

    @field_validator("n_best")
    @classmethod
    def _no_more_than_the_beam_holds(cls, n_best: int, info) -> int:
        beam_size = info.data.get("beam_size", n_best)
        if n_best > beam_size and not info.data.get("sampling"):
            raise _problem(f"is more than decoding.beam_size ({beam_size})")
        return n_best


class EvaluationConfig(Section):
    """Scores."""

    tokenize: Literal["13a", "zh", "char", "intl", "none"] | None = Field(
        None, description="sacreBLEU's; null: zh for Chinese, none for BPE'd text, else 13a"
    )
    validation_beam_size: BeamSize = Field(1, description="beam of the dev set's BLEU")
    samples: NaturalNumber = Field(3, description="translations shown at the end")


class Heads(NamedTuple):
    """The first `heads` heads of the attention to the source in a decoder layer, from 0."""

    layer: int
    heads: int

    @classmethod
    def nearest_to_alignment(cls, num_layers: int, num_heads: int) -> Heads:
        """All of the last layer but one, of all layers the nearest to an alignment of words, unless
        a model was told its own (Garg et al. 2019, arXiv 1909.02074, section 3.2)."""
        return cls(max(num_layers - 2, 0), num_heads)


# For each option: a key of another section, the one value of it that goes together with the option,
# and why no other does.
NEEDED_BY: dict[str, list[tuple[str, Any, str]]] = {
    "model.copying": [
        ("subword.joint", True, "a subword is copied by its number, the same on both sides"),
    ],
    "guided_attention.by": [
        ("scheduled_sampling.decay", None, "it guides from true words, and others replace them"),
        ("subword.sampling", None, "it guides from the subwords that the corpus is encoded in"),
    ],
    "model.non_autoregressive": [
        ("scheduled_sampling.decay", None, "there are no words before, which could be replaced"),
        ("guided_attention.by", None, "it reads masks, and words are what would be guided"),
        ("decoding.sampling", False, "all words are predicted at once, none after another"),
        ("decoding.n_best", 1, "it has one output of a line"),
    ],
}


class Config(Section):
    """A whole recipe."""

    model_dir: str = Field(..., min_length=1, description="where everything of this run goes")
    data: DataConfig
    subword: SubwordConfig = Field(default_factory=SubwordConfig)
    model: ModelConfig = Field(default_factory=ModelConfig)
    training: TrainingConfig
    scheduled_sampling: ScheduledSamplingConfig = Field(default_factory=ScheduledSamplingConfig)
    guided_attention: GuidedAttentionConfig = Field(default_factory=GuidedAttentionConfig)
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)

    @property
    def guided_heads(self) -> Heads:
        """Those that the section guided_attention is about."""
        layer = self.guided_attention.layer
        default = self._nearest_heads.layer
        return Heads(default if layer is None else layer - 1, self.guided_attention.heads)

    @property
    def alignment_heads(self) -> Heads:
        """Those whose mean tells which words belong together: the guided ones, if they were guided
        by that. (One that is guided to the diagonal says little of where words change places.)"""
        by_alignment = self.guided_attention.by == "alignment"
        return self.guided_heads if by_alignment else self._nearest_heads

    @property
    def layers_read_by_the_loss(self) -> frozenset[int]:
        """The decoder layers, from 0, whose attention weights are more than a step to the output.
        They are kept in training, with `recompute` too, and can't be fused with what follows."""
        layers = set()
        if self.model.copying:
            layers.add(self.model.decoder_layers - 1)
        if self.guided_attention.by is not None:
            layers.add(self.guided_heads.layer)
        return frozenset(layers)

    @property
    def _nearest_heads(self) -> Heads:
        return Heads.nearest_to_alignment(self.model.decoder_layers, self.model.num_heads)


SECTIONS: dict[str, type[Section]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
