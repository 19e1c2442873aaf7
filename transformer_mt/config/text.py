"""The sections `data` and `subword`: the text, and how it is split."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from transformer_mt.config.section import (
    NaturalNumber,
    NonEmptyText,
    PositiveInt,
    Probability,
    Section,
    Symbol,
)

# The four special subwords, and at least one for text. SentencePiece crashes from some 2 * 10^9 on.
VocabularySize = Annotated[int, Field(gt=4, le=10_000_000)]


class TrainingText(Section):
    """One of several training texts."""

    text: NonEmptyText
    """The name of the text, or of a file of pairs or a folder of such files."""

    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """How often an epoch reads each pair. With 0.5, each epoch reads half of the pairs, drawn
    anew."""

    tag: Symbol | None = None
    """A word that is put before each source (tagged back-translation, Caswell et al. 2019, arXiv
    1906.06442)."""

    reverse: bool = False
    """Whether source and target change places (Ding et al. 2021, arXiv 2109.07780)."""

    general: bool = False
    """Whether this is text of the kind that the model before fine-tuning was made for."""

    columns: Annotated[list[NonEmptyText], Field(min_length=2, max_length=2)] | None = None
    """The columns, or fields, of the source and the target in a table, JSON Lines or Parquet."""

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


# The classes of protected spans, in the order of precedence (see `data.spans`).
PROTECTED_CLASSES = (
    *("tags", "markdown", "urls", "emails", "entities", "placeholders", "numbers"),
)
# Those that are protected in a document if neither the model nor the user says what is. Its markup
# always is. Numbers are translated, because languages write them in different ways.
PROTECTED_IN_DOCUMENTS = tuple(name for name in PROTECTED_CLASSES if name != "numbers")


def _protected(settings: list[str]) -> list[str]:
    for setting in settings:
        if re.fullmatch("[a-z]+", setting):
            if setting not in PROTECTED_CLASSES:
                raise PydanticCustomError(
                    "protect",
                    "{setting} is no class of spans; they are {classes}",
                    {"setting": setting, "classes": ", ".join(PROTECTED_CLASSES)},
                )
            continue
        try:
            matches_nothing = re.compile(setting).match("") is not None
        except (re.error, RecursionError, OverflowError) as error:
            raise PydanticCustomError(
                "protect",
                "{setting} is no regular expression: {error}",
                {"setting": setting, "error": str(error)},
            ) from None
        if matches_nothing:
            raise PydanticCustomError(
                "protect", "{setting} matches an empty text", {"setting": setting}
            )
    return settings


ProtectedSpans = Annotated[list[NonEmptyText], AfterValidator(_protected)]

# The forms of data.train and of its items. pydantic puts their names into the place of an error,
# from which `config.load` removes them.
FORMS = A_NAME, A_LIST, A_MAPPING = ("<name>", "<list>", "<mapping>")


def _form(value: Any) -> str:
    forms: dict[type, str] = {list: A_LIST, str: A_NAME}
    return forms.get(type(value), A_MAPPING)


def _name_or_list(value: Any) -> Any:
    is_list = isinstance(value, list) and value and all(value)
    if isinstance(value, str) or (
        is_list and all(isinstance(item, str | dict | TrainingText) for item in value)
    ):
        return value
    raise PydanticCustomError(
        "texts", "expected text, or a list of texts as in [news, {text: web, weight: 2}]"
    )


_Name = Annotated[str, Tag(A_NAME)]
_Item = Annotated[_Name | Annotated[TrainingText, Tag(A_MAPPING)], Discriminator(_form)]
_List = Annotated[list[_Item], Tag(A_LIST)]
OneOrSeveralTexts = Annotated[_Name | _List, Discriminator(_form), BeforeValidator(_name_or_list)]


class DataConfig(Section):
    """Where the parallel text is, and which of its pairs are used. Training leaves out pairs that
    are empty on one side, and pairs that the keys below exclude. It prints how many."""

    dataset: Literal["files", "multi30k", "multi30k_lc_norm_tok", "wmt14ende"] = "files"
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
    compressed (.gz, .bz2, .xz). Other files of pairs (TMX, XLIFF, PO, Qt's .ts, CSV, JSON Lines,
    Parquet) are named as they are: memory.tmx; a folder stands for all of them in it. A list such
    as [news, web] names several texts, which follow one another. With the other datasets, the names
    are train, dev and test. An item of the list can also be a mapping such as
    `{text: web, weight: 2, tag: <web>, reverse: true}`, of which only text is required; see
    docs/data.md.
    weight   how often an epoch reads each pair; with 0.5, each epoch draws half of the pairs anew
    tag      a word that is put before each source; it must be one of subword.user_symbols
    reverse  whether source and target change places
    general  for fine-tuning: whether it is text of the kind that the model before was made for
    columns  the columns of source and target in a table, JSON Lines or Parquet, as in [en, de]
    The defaults are a weight of 1, no tag, false, and the usual names of columns. With
    training.init_from, tags that the subwords of that model lack are added to them."""

    dev: str | None = None
    """The dev set, given like `train`. It decides which checkpoint is the best. With null, pairs of
    the training text are held out for it. They are drawn with training.seed and written to
    MODEL_DIR/held_out."""

    test: str | None = None
    """The test set, given like `train`. Training ends with its score. With null, pairs of the
    training text are held out for it, as for `dev`."""

    general_dev: NonEmptyText | None = None
    """For fine-tuning: a dev set of the kind of text that the model `training.init_from` was made
    for, given like `train`. Each validation measures it too, which shows what the model forgets. It
    does not decide which checkpoint is the best. With null, pairs of those texts of `train` that
    are general are held out for it, if there are such texts. (`dev` and `test` are held out of the
    others.)"""

    general_test: NonEmptyText | None = None
    """For fine-tuning: a test set of that kind, given like `train`. At the end, the model before
    and the model after fine-tuning translate it, and a warning says if it has become worse by more
    than chance. With null, pairs are held out for it, as for `general_dev`."""

    source_lang: NonEmptyText
    """The source language. It is the ending of the names of its files, such as en."""

    target_lang: NonEmptyText
    """The target language. It is the ending of the names of its files, such as de."""

    held_out: NaturalNumber = 1000
    """The number of pairs that are held out for the dev set if `dev` is null, for the test set if
    `test` is null, and for each of the general sets likewise. At most a tenth of all pairs is held
    out for each, and fewer if otherwise much text would be lost, because its sentences are in
    several pairs. 0 holds out nothing."""

    max_length: PositiveInt = 256
    """The length of the longest sentence, in subwords. Training and the loss of the dev set leave
    out a pair if one of its sides is longer."""

    max_length_ratio: Annotated[float, Field(ge=1)] | None = 6.0
    """The largest ratio of the lengths of the two sides. Training leaves out a pair if one side is
    more than this many times as long as the other, in subwords with the end token. null allows any
    ratio."""

    drop_duplicates: bool = False
    """Whether training leaves out exact repetitions of a pair."""

    protect: ProtectedSpans = Field(default=[])
    """The parts of a text that a translation must keep as they are. Each stands in the text as a
    symbol, which is one subword. The search writes each symbol of the source exactly once, and then
    the parts take the places of their symbols. The value is a list of names and of regular
    expressions; see docs/localisation.md.
    tags          `<b>...</b>`, `<img/>`, and the elements of XLIFF such as `<g id="1">`
    markdown      code between backticks, and the addresses of links
    urls          addresses such as https://example.com/a?b=1
    emails        addresses such as info@example.com
    entities      `&amp;`, `&#39;`
    placeholders  `{0}`, `{name}`, ICU's `{count, plural, ...}`, `%s`, `%1$d`, `%(name)s`, `$NAME`,
                  `${x}`, `__x__`, `{{x}}`
    numbers       numbers with their units, such as 2.5 GB
    [] protects nothing."""

    input_noise: Probability = 0.0
    """The share of the training pairs that get noise of the kinds that people type: UPPER CASE,
    Title Case, lower case, no final stop, or typing errors. Upper case and a missing stop are
    translated as such. Text of these kinds is then translated better."""

    annotate_terms: Probability = 0.0
    """The share of the training pairs in whose source some words get their translations beside
    them. The model learns from these to use translations that it is given, in the form that the
    sentence needs (`decoding.terms_by: annotation`). The words are found in the training text
    itself. A small model that trains for an hour on a CPU hardly learns it; the search follows
    terms with every model."""

    drop_unmatched: bool = False
    """Whether training leaves out pairs whose protected parts do not match: one side has a tag or a
    placeholder that the other side lacks. With false, such a part stays text."""

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


# The names of the special subwords of SentencePiece models.
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")


def _distinct_symbols(symbols: list[str]) -> list[str]:
    taken = [*SPECIAL, *symbols]
    if repeated := [symbol for symbol in symbols if taken.count(symbol) > 1]:
        raise PydanticCustomError(
            "symbols", "{symbol} is a subword already", {"symbol": repeated[0]}
        )
    return symbols


class SubwordConfig(Section):
    """How text is split into subwords."""

    type: Literal["bpe", "unigram", "char", "word", "vocabulary", "marian"] = "bpe"
    """The kind of subwords.
    bpe         byte-pair encoding, which keeps frequent words whole and splits rare words
    unigram     splits words by the probabilities of their subwords, and keeps frequent words whole
    char        single characters
    word        whole words, which spaces separate
    vocabulary  the subwords that a file lists, for text that is already split (`@@ `)
    marian      those of an imported model: two SentencePiece models whose subwords one list numbers
    The first four are SentencePiece models, which are trained on the training text. The last can't
    be trained; a recipe gets it from the model that it fine-tunes (`training.init_from`)."""

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

    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 1.0  # as SentencePiece has it
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

    user_symbols: Annotated[list[Symbol], AfterValidator(_distinct_symbols)] = Field(default=[])
    """Strings that are always one subword each, such as the tags of `data.train`. If the model that
    a recipe fine-tunes (`training.init_from`) lacks some of them, they are added to its
    subwords."""

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
