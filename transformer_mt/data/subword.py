"""Text to subwords and back: with SentencePiece models trained on the training text, or with the
vocabulary that BPE'd text comes with.

Every vocabulary has four distinct special ids: pad, unk, bos and eos. No other module has constants
for them.
"""

from __future__ import annotations

import io
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import sentencepiece

from transformer_mt.config.text import SubwordConfig
from transformer_mt.data.normalization import RULES, trainer_options
from transformer_mt.utils import signals
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import byte_lines, lines, write_atomically

if TYPE_CHECKING:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

# In bytes. SentencePiece silently skips longer sentences; its own default is 4,192.
LONGEST_SENTENCE = 1 << 20
# The subwords of a larger corpus are trained on a sample of this many lines, to limit the memory.
# With 160 characters per line, as in news, BPE takes 1.2 GB, which grows with the number of
# different words, and unigram takes 1.1 GB, about 26 bytes per character.
TRAINING_LINES = {"bpe": 500_000, "unigram": 250_000, "char": 500_000, "word": 500_000}


T = TypeVar("T")
# Characters of a text, [start, end).
Place = tuple[int, int]
# The marks that end a sentence.
FINAL_MARKS = ".!?…:。！？："
# How SentencePiece writes a space.
SPACE = "\u2581"


class Vocabulary(Protocol):
    """The subwords of one side, and the ids of the four special subwords."""

    size: int
    pad: int
    unk: int
    bos: int
    eos: int

    # The id of the subword that is only a space, or -1.
    space: int = -1

    @property
    def special(self) -> list[int]:
        return [self.pad, self.unk, self.bos, self.eos]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a line, without bos or eos."""

    def encode_within(self, text: str) -> list[int]:
        """Returns the ids of a text that continues a word."""
        return self.encode(text)

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of each text, as `encode` does."""
        return [self.encode(text) for text in texts]

    def sample(self, text: str, rate: float) -> list[int]:
        """Works as `encode`, but draws the subwords of the text at random (see `seeded`).

        Raises:
            UsageError: these subwords can't be sampled.
        """
        raise UsageError("subword.sampling: null is needed where BPE was applied before")

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the line that some ids stand for. Of the special ids, only unk is visible."""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Returns the subword of each id, as the vocabulary spells it."""

    def places(self, text: str) -> list[Place]:
        """Returns the place in the text of each subword of `encode(text)`, without the spaces
        around it. The places are in order and don't overlap. A subword that has no character of
        its own, such as a space, has an empty place."""

    def decoded_places(self, ids: Iterable[int]) -> list[Place]:
        """Returns the place in `decode(ids)` of each id, as `places` does."""

    def unknown(self, text: str) -> list[str]:
        """Returns the parts of a text that are unknown subwords."""
        ids = self.encode(text)
        if self.unk not in ids:
            return []
        places = zip(ids, self.places(text), strict=True)
        return [text[start:end] for i, (start, end) in places if i == self.unk]

    def content(self) -> bytes:
        """Returns everything that defines the vocabulary: equal content encodes equally."""

    @property
    def final_marks(self) -> frozenset[int]:
        """The ids of the marks that end a sentence."""
        return frozenset()

    @property
    def user_symbols(self) -> dict[str, int]:
        """The ids of the strings that are one subword each: subword.user_symbols, and the symbols
        of protected spans."""
        return {}


class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model (Kudo and Richardson 2018, arXiv 1808.06226).

    With identity normalisation (or nfc, for text in NFC), decode(encode(x)) is x if every character
    of x is in the vocabulary, with one exception: U+2581, which SentencePiece writes for a space,
    becomes a space. A tab, U+0000 and U+2585 can't be in a vocabulary; SentencePiece ignores lines
    that contain one.

    Raises:
        ValueError, RuntimeError: `model` is not a whole model with its four special subwords.
    """

    def __init__(self, model: bytes) -> None:
        if not model:
            raise ValueError("it is empty")
        self._model = model
        self._processor = sp = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = sp.vocab_size()
        space = sp.piece_to_id(SPACE)
        self.space = -1 if space == sp.unk_id() else space
        special = [sp.pad_id(), sp.unk_id(), sp.bos_id(), sp.eos_id()]
        self.pad, self.unk, self.bos, self.eos = special
        if len(set(special) & set(range(self.size))) < 4:
            raise ValueError("it has no four different ids for pad, unk, bos and eos")

    def __reduce__(self) -> tuple[type, tuple[bytes]]:
        return SentencePieceVocabulary, (self._model,)  # to pickle it by its content

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text)

    def encode_within(self, text: str) -> list[int]:
        return self._unspaced.encode(text)

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        # One call for all texts takes a third less time than one call per text. It uses one thread,
        # because the caller may have a process for every core.
        return self._processor.encode(texts, num_threads=1)

    def sample(self, text: str, rate: float) -> list[int]:
        """Draws the subwords of a text.

        A model of type bpe leaves out each merge with probability `rate` (BPE-dropout, Provilkov
        et al. 2020, arXiv 1910.13267, section 3). A model of type unigram draws from all
        segmentations of the text, each with its probability to the power `rate`, so that a lower
        rate gives more variation (subword regularisation, Kudo 2018, arXiv 1804.10959, section 3.3,
        alpha).
        """
        # nbest_size=-1: from all segmentations, not only the best n. BPE-dropout ignores it.
        options = {"enable_sampling": True, "alpha": rate, "nbest_size": -1}
        if not self.user_symbols:
            return self._processor.encode(text, **options)
        # A model of type unigram would sometimes draw the parts of a symbol. So the text between
        # symbols is sampled, to whose start SentencePiece must not add a space.
        ids: list[int] = []
        for part in filter(None, self._split.split(f" {text}" if text else "")):
            number = self.user_symbols.get(part)
            ids += self._unspaced.encode(part, **options) if number is None else [number]
        return ids

    @cached_property
    def final_marks(self) -> frozenset[int]:
        ids = map(self._processor.piece_to_id, FINAL_MARKS)
        return frozenset(ids) - {self.unk}

    @cached_property
    def user_symbols(self) -> dict[str, int]:
        proto = _proto(self._model)
        kind = proto.SentencePiece.USER_DEFINED
        return {piece.piece: i for i, piece in enumerate(proto.pieces) if piece.type == kind}

    @cached_property
    def _split(self) -> re.Pattern:
        """Finds the symbols in a text. Where several begin, it takes the longest, as encoding
        does."""
        longest_first = sorted(self.user_symbols, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    @cached_property
    def _unspaced(self) -> sentencepiece.SentencePieceProcessor:
        """The model, but it adds no space to the start of a text."""
        processor = sentencepiece.SentencePieceProcessor(model_proto=self._model)
        processor.override_normalizer_spec(add_dummy_prefix=False)
        return processor

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode([int(i) for i in ids])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def places(self, text: str) -> list[Place]:
        return self._places(self._processor.encode(text, out_type="immutable_proto"))

    def decoded_places(self, ids: Iterable[int]) -> list[Place]:
        ids = [int(i) for i in ids]
        # SentencePiece returns a str if there are no ids.
        return self._places(self._processor.decode(ids, out_type="immutable_proto")) if ids else []

    def _places(self, encoded: sentencepiece.ImmutableSentencePieceText) -> list[Place]:
        text, places = encoded.text, []
        for piece in encoded.pieces:  # their offsets are in characters, and before normalisation
            start, end = piece.begin, piece.end
            while start < end and self._is_blank(text[start]):
                start += 1
            while start < end and self._is_blank(text[end - 1]):
                end -= 1
            places.append((start, end))
        return places

    def _is_blank(self, character: str) -> bool:
        """Whether the normalisation makes a character a space, or removes it."""
        return not "".join(self._processor.encode(character, out_type=str)).strip(SPACE)

    def content(self) -> bytes:
        return self._model


# A token of BPE'd text. A no-break space, U+3000 or U+2028 can be a part of one.
_TOKEN = re.compile(r"[^ \t]+")


def tokens(text: str) -> list[str]:
    """Returns the tokens of text with BPE applied."""
    return _TOKEN.findall(text)


class WordVocabulary(Vocabulary):
    """A list of tokens, for text with BPE applied, whose tokens are separated by spaces.

    Decoding joins the parts of a word, which end in `@@` (Sennrich et al. 2016, arXiv 1508.07909).
    """

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = list(tokens)
        self._ids = {token: i for i, token in enumerate(tokens)}
        spellings = (("<pad>",), ("<unk>",), ("<s>",), ("<e>", "</s>"))
        self.pad, self.unk, self.bos, self.eos = special = list(map(self._special_id, spellings))
        self._special = set(special)
        self.size = len(self._tokens)

    def _special_id(self, spellings: tuple[str, ...]) -> int:
        """Returns the id of the spelling that the vocabulary has. If it has none, adds the first:
        PaddleNLP's vocabularies have no pad, and reuse another id for it."""
        token = next((token for token in spellings if token in self._ids), spellings[0])
        if token not in self._ids:
            self._ids[token] = len(self._tokens)
            self._tokens.append(token)
        return self._ids[token]

    def encode(self, text: str) -> list[int]:
        # A special token in the text is an unknown word.
        ids = (self._ids.get(token, self.unk) for token in tokens(text))
        return [self.unk if i in self._special else i for i in ids]

    def decode(self, ids: Iterable[int]) -> str:
        hidden = self._special - {self.unk}
        text = " ".join(self._tokens[i] for i in ids if i not in hidden)
        return re.sub(r"@@( |$)", "", text)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._tokens[i] for i in ids]

    def places(self, text: str) -> list[Place]:
        return [match.span() for match in _TOKEN.finditer(text)]

    def decoded_places(self, ids: Iterable[int]) -> list[Place]:
        places, end, space = [], 0, 0
        for i in ids:
            if i in self._special and i != self.unk:
                places.append((end, end))
                continue
            token = self._tokens[i]
            start = end + space
            end = start + len(token.removesuffix("@@"))
            space = 0 if token.endswith("@@") else 1
            places.append((start, end))
        return places

    def content(self) -> bytes:
        return "".join(f"{token}\n" for token in self._tokens).encode()


class Subwords:
    """The vocabularies of both sides. A joint vocabulary is the same object on both."""

    def __init__(self, source: Vocabulary, target: Vocabulary) -> None:
        self.source = source
        self.target = target
        self.joint = source is target

    @property
    def vocabularies(self) -> tuple[Vocabulary, ...]:
        """The joint vocabulary, or that of the source and that of the target."""
        return (self.source,) if self.joint else (self.source, self.target)

    def save(self, folder: Path) -> None:
        """Writes the subword model of a model directory, which `load` reads."""
        kind = "txt" if isinstance(self.source, WordVocabulary) else "model"
        names = ["subword"] if self.joint else ["subword.source", "subword.target"]
        for name, vocabulary in zip(names, self.vocabularies, strict=True):
            write_atomically(folder / f"{name}.{kind}", vocabulary.content())

    @classmethod
    def load(cls, folder: Path) -> Subwords:
        """Reads the files that `save` wrote.

        Raises:
            UserError: the folder has no subword model, or a damaged one.
        """
        if (folder / "subword.txt").is_file():
            tokens = list(lines(folder / "subword.txt"))
            vocabulary = WordVocabulary(tokens)
            # `save` writes every type once, including the special tokens.
            if vocabulary.size != len(tokens) or len(set(tokens)) != len(tokens):
                raise UserError(f"{folder / 'subword.txt'}: damaged; it is not as it was written")
            return cls(vocabulary, vocabulary)
        for names in (("subword",), ("subword.source", "subword.target")):
            paths = [folder / f"{name}.model" for name in names]
            if all(path.is_file() for path in paths):
                models = list(map(_load_model, paths))
                return cls(models[0], models[-1])
        raise UserError(f"{folder}: there is no subword model (subword.model) in it")

    @classmethod
    def from_vocabulary(cls, path: Path) -> Subwords:
        """Reads the vocabulary of BPE'd text, a file with one type per line.

        Raises:
            UsageError: there is no such file.
            UserError: it has no type, or one more than once.
        """
        # Some files have counts behind a tab or a space, begin with a byte order mark, or end in
        # empty lines.
        text = b"\n".join(byte_lines(path)).decode("utf-8-sig", errors="replace").rstrip(" \t\n")
        if not text:
            raise UserError(f"{path}: there is no type in it")
        tokens = [re.split("[\t ]", line)[0] for line in text.split("\n")]
        token, count = Counter(tokens).most_common(1)[0]
        if count > 1:
            raise UserError(f"{path}: the type {token!r} is in it more than once")
        vocabulary = WordVocabulary(tokens)
        return cls(vocabulary, vocabulary)

    @classmethod
    def train(
        cls,
        pairs: Callable[[], Iterator[tuple[str, str]]],
        config: SubwordConfig,
        symbols: Sequence[str] = (),
    ) -> Subwords:
        """Trains SentencePiece models. Each call of `pairs` must read the text from its start.

        Args:
            symbols: strings that are one subword each, besides those of the config.

        Raises:
            UsageError: the vocabulary is too small for the characters of the text.
        """
        texts = [(text for pair in pairs() for text in pair)]
        if not config.joint:
            texts = [(source for source, _ in pairs()), (target for _, target in pairs())]
        sizes = zip(texts, config.vocabulary_sizes.items(), strict=True)
        symbols = [*config.user_symbols, *symbols]
        models = [_train(text, config, size, key, symbols) for text, (key, size) in sizes]
        return cls(models[0], models[-1])

    def content(self) -> bytes:
        return self.source.content() + b"\0" + self.target.content()


_sampling = threading.Lock()


def seeded(seed: Sequence[int], work: Callable[[], T]) -> T:
    """Returns work(). Everything that `work` samples depends on `seed` alone.

    SentencePiece has one random generator per thread. It takes the seed that is set when the thread
    samples for the first time, and ignores later seeds. So `work` runs in a new thread, and no
    other seed can be set in the meantime.

    Args:
        seed: natural numbers.
    """
    # SentencePiece does not accept 2**32 - 1 as a seed, and would keep the previous one.
    number = int(np.random.SeedSequence(seed).generate_state(1)[0]) % (2**32 - 1)
    with _sampling, ThreadPoolExecutor(1) as fresh:
        sentencepiece.set_random_generator_seed(number)
        return fresh.submit(work).result()


def _proto(model: bytes) -> ModelProto:
    """Returns the content of a SentencePiece model."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # few callers need it

    return ModelProto.FromString(model)


def _load_model(path: Path) -> SentencePieceVocabulary:
    try:
        return SentencePieceVocabulary(path.read_bytes())
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"{path}: not a SentencePiece model: {error}") from None


def _train(
    text: Iterator[str], config: SubwordConfig, size: int, key: str, symbols: Sequence[str]
) -> SentencePieceVocabulary:
    """Trains a SentencePiece model. The same text and config give the same model.

    Args:
        size: the size of the vocabulary. It becomes smaller if the text has fewer subwords.
        key: the key of the config that sets the size.
        symbols: strings that are one subword each.
    """
    first_line = next(text, None)
    if first_line is None:
        raise UserError("there is no training pair with text on both sides")
    failures: list[BaseException] = []

    def sentences() -> Iterator[str]:
        # SentencePiece replaces any exception of its input, even Ctrl-C, with one of its own.
        try:
            yield first_line
            yield from text
        except GeneratorExit:
            raise
        except BaseException as error:
            failures.append(error)

    model = io.BytesIO()
    problem = None
    try:
        with signals.undisguised(), trainer_options(config.normalization) as normalization:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences(),
                model_writer=model,
                model_type=config.type,
                vocab_size=size,
                character_coverage=config.character_coverage,
                **normalization,
                # Every space is kept, so that decoding restores the text.
                remove_extra_whitespaces=False,
                # A corpus too small for the size gets as many subwords as it has.
                hard_vocab_limit=False,
                pad_id=0,
                unk_id=1,
                bos_id=2,
                eos_id=3,
                unk_surface="\u2047",
                user_defined_symbols=symbols,
                input_sentence_size=TRAINING_LINES[config.type],
                shuffle_input_sentence=True,
                max_sentence_length=LONGEST_SENTENCE,
                minloglevel=2,
            )
    except (RuntimeError, SystemError) as error:
        problem = str(error)
    if failures:
        raise failures[0]
    if problem:
        needed = re.search(r"(\d+) vs (\d+)", problem)
        if "required_chars" in problem and needed:
            raise UsageError(
                f"{key}: {size}: the text has {needed[2]} different characters and special "
                "subwords, which the vocabulary must hold. Raise it, or lower "
                "subword.character_coverage"
            )
        raise UserError(f"SentencePiece could not be trained: {problem}")
    content = model.getvalue()
    if config.normalization in RULES:
        proto = _proto(content)
        proto.normalizer_spec.name = config.normalization
        proto.normalizer_spec.ClearField("normalization_rule_tsv")  # the temporary file
        content = proto.SerializeToString()
    return SentencePieceVocabulary(content)
