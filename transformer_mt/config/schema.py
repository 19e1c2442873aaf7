"""The YAML schema: one class per section, with every key described, and the rules between keys."""

from typing import Annotated, Literal

from pydantic import Field

from transformer_mt.config.heads import Heads
from transformer_mt.config.section import (
    NaturalNumber,
    PositiveFloat,
    PositiveInt,
    Probability,
    Problems,
    Section,
    at_least,
    at_most,
    needs,
)
from transformer_mt.data.datasets import DATASETS
from transformer_mt.evaluation.metrics import METRICS
from transformer_mt.mechanisms.copying import config as copying
from transformer_mt.mechanisms.guided_attention import config as guided_attention
from transformer_mt.mechanisms.guided_attention.config import GuidedAttentionConfig
from transformer_mt.mechanisms.mask_predict import config as mask_predict
from transformer_mt.mechanisms.mask_predict.config import LONGEST_TARGET
from transformer_mt.mechanisms.scheduled_sampling import config as scheduled_sampling
from transformer_mt.mechanisms.scheduled_sampling.config import ScheduledSamplingConfig
from transformer_mt.training.schedule import SCHEDULES

# The four special subwords, and at least one for text. SentencePiece crashes from some 2 * 10^9 on.
VocabularySize = Annotated[int, Field(gt=4, le=10_000_000)]
# Every hypothesis of a beam has a cache.
BeamSize = Annotated[int, Field(gt=0, le=1000)]
# A layer of width 65,536 has weights of 17 GB; nobody has trained 1,000 layers.
LayerCount = Annotated[int, Field(gt=0, le=1000)]
Width = Annotated[int, Field(gt=0, le=2**16)]
# A factor of 1 would never forget, and Adam would divide by zero.
Decay = Annotated[float, Field(ge=0), at_most(0.999999, "float32 takes what is nearer to 1 for 1")]
# Ratios of the lengths of output and input. Longer outputs than these would fill the memory.
LengthRatio = Annotated[float, Field(le=100)]
ExtraLength = Annotated[int, Field(ge=0, le=10_000)]


class DataConfig(Section):
    """Where the parallel text is, and which pairs of it are used."""

    dataset: Literal[tuple(DATASETS)] = Field(
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
        float, Field(gt=0, le=1), at_least(0.98, "SentencePiece takes no less")
    ] = Field(1.0, description="share of the text's characters that the vocabulary must hold")
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = Field(
        "identity", description="SentencePiece's normalisation rule; identity keeps the text"
    )
    sampling: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="bpe: BPE-dropout's rate; unigram: alpha of sampling; null: none"
    )
    vocabulary: str | None = Field(None, description="vocabulary file, one type a line")

    @property
    def vocabulary_sizes(self) -> dict[str, int]:
        """The size that each vocabulary should have, by the key that sets it: the joint one's, or
        those of source and target."""
        if self.joint:
            return {"subword.vocab_size": self.vocab_size}
        return {
            "subword.source_vocab_size": self.source_vocab_size or self.vocab_size,
            "subword.target_vocab_size": self.target_vocab_size or self.vocab_size,
        }


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


class TrainingConfig(Section):
    """The optimisation, its schedule, and its intervals (in steps: updates of the weights)."""

    max_steps: PositiveInt | None = Field(None, description="stop after these updates")
    max_epochs: PositiveInt | None = Field(None, description="stop after these passes")
    batch_tokens: PositiveInt = Field(4096, description="padded target tokens of one update")
    device_tokens: PositiveInt = Field(4096, description="how many a process takes at once")
    optimizer: Literal["adam", "adamw", "sgd"] = Field("adam", description="update rule")
    schedule: Literal[tuple(SCHEDULES)] = Field("noam", description="rate")
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
        at_least(
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
    best_metric: Literal[(*METRICS, "loss", "perplexity")] = Field(
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

    @property
    def batch_plan(self) -> tuple[int, int]:
        """How many batches an update adds up, and the padded tokens of each."""
        count = -(-self.batch_tokens // self.device_tokens)
        return count, self.batch_tokens // count


class DecodingConfig(Section):
    """The search."""

    beam_size: BeamSize = Field(5, description="1: greedy")
    length_penalty: Annotated[
        float, Field(ge=0), at_most(10, "higher powers of a length overflow")
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
        at_least(
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


class EvaluationConfig(Section):
    """Scores."""

    tokenize: Literal["13a", "zh", "char", "intl", "none"] | None = Field(
        None, description="sacreBLEU's; null: zh for Chinese, none for BPE'd text, else 13a"
    )
    validation_beam_size: BeamSize = Field(1, description="beam of the dev set's BLEU")
    samples: NaturalNumber = Field(3, description="translations shown at the end")


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


def data_rules(config: Config) -> Problems:
    data, subword = config.data, config.subword
    dataset, name = DATASETS[data.dataset], data.dataset
    if dataset.needs_root and data.root is None:
        message = f"data.dataset: {name} needs the folder that holds them"
        yield ("data.root", "data.dataset"), message
    for key in ("train", "dev", "test"):
        if dataset.splits and getattr(data, key) not in (*dataset.splits, None):
            message = f"{name} has the splits {', '.join(dataset.splits)}"
            yield (f"data.{key}", "data.dataset"), message
    languages = "data.target_lang", "data.source_lang"
    if data.target_lang == data.source_lang:
        yield languages, "must differ from data.source_lang"
    if dataset.languages and not {data.source_lang, data.target_lang} <= {*dataset.languages}:
        message = f"{name} has the languages {' and '.join(dataset.languages)}"
        yield (*languages, "data.dataset"), message
    if dataset.is_bpe and subword.type != "vocabulary":
        message = f"data.dataset: {name} is BPE'd text, it needs type: vocabulary"
        yield ("subword.type", "data.dataset"), message


def subword_rules(config: Config) -> Problems:
    subword = config.subword
    if subword.sampling is not None and subword.type not in ("bpe", "unigram"):
        yield ("subword.sampling", "subword.type"), "needs subword.type: bpe or unigram"
    if not subword.joint and subword.type == "vocabulary":
        message = "subword.type: vocabulary is one vocabulary for both sides"
        yield ("subword.joint", "subword.type"), message
    for key in ("subword.source_vocab_size", "subword.target_vocab_size"):
        yield from needs(config, key, "subword.joint", False)
    yield from needs(config, "subword.vocabulary", "subword.type", "vocabulary")
    needs_file = subword.type == "vocabulary" and not DATASETS[config.data.dataset].is_bpe
    if needs_file and not subword.vocabulary:
        keys = "subword.vocabulary", "subword.type", "data.dataset"
        yield keys, "type: vocabulary needs the file with the types"


def model_rules(config: Config) -> Problems:
    model = config.model
    if model.d_model % model.num_heads:
        message = f"must divide model.d_model ({model.d_model})"
        yield ("model.num_heads", "model.d_model"), message


def training_rules(config: Config) -> Problems:
    training, schedule = config.training, SCHEDULES[config.training.schedule]
    if training.max_epochs is None and training.max_steps is None:
        keys = "training.max_epochs", "training.max_steps"
        yield keys, "give training.max_steps or training.max_epochs"
    if schedule.needs_warmup and not training.warmup_steps:
        message = f"schedule {training.schedule} needs at least 1"
        yield ("training.warmup_steps", "training.schedule"), message
    if schedule.default_peak is None and training.learning_rate is None:
        message = f"schedule {training.schedule} needs a rate"
        yield ("training.learning_rate", "training.schedule"), message
    if (training.average_last or 0) > training.keep_last:
        message = f"is more than training.keep_last ({training.keep_last})"
        yield ("training.average_last", "training.keep_last"), message
    yield from needs(config, "training.weight_decay", "training.optimizer", "adamw")


def decoding_rules(config: Config) -> Problems:
    decoding = config.decoding
    if decoding.n_best > decoding.beam_size and not decoding.sampling:
        keys = "decoding.n_best", "decoding.beam_size", "decoding.sampling"
        yield keys, f"is more than decoding.beam_size ({decoding.beam_size})"


RULES = [
    *(data_rules, subword_rules, model_rules, training_rules, decoding_rules),
    *(module.rules for module in (scheduled_sampling, guided_attention, copying, mask_predict)),
]
