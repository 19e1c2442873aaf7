"""Vocabularies: text to the ids of subwords and back.

Here are two kinds: a SentencePiece model, and a list of words, for text with BPE applied. Imported
models have a third, which `data.marian_vocabulary` has.

Every vocabulary has four distinct special ids: pad, unk, bos and eos. No other module has constants
for them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import sentencepiece

from transformer_mt.utils.errors import UsageError

if TYPE_CHECKING:
    from sentencepiece.sentencepiece_model_pb2 import ModelProto
    from typing_extensions import Self


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
        """The ids of the strings that are one subword each: subword.user_symbols, the symbols of
        protected spans, and `language_tokens`."""
        return {}

    @property
    def language_tokens(self) -> dict[str, int]:
        """The ids of the tokens that name a target language, such as >>deu<<. A model of several
        target languages reads one at the start of a source."""
        return {}

    def with_symbols(self, symbols: Sequence[str]) -> Self:
        """Returns this vocabulary, extended by those of some strings that are not one subword each
        yet. All subwords keep their ids, and text without the strings is encoded as before.

        Raises:
            UsageError: one of the strings is a special subword.
        """


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
        self.model = model
        self._processor = sp = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.size = sp.vocab_size()
        space = sp.piece_to_id(SPACE)
        self.space = -1 if space == sp.unk_id() else space
        special = [sp.pad_id(), sp.unk_id(), sp.bos_id(), sp.eos_id()]
        self.pad, self.unk, self.bos, self.eos = special
        if len(set(special) & set(range(self.size))) < 4:
            raise ValueError("it has no four different ids for pad, unk, bos and eos")

    def __reduce__(self) -> tuple[type, tuple[bytes]]:
        return SentencePieceVocabulary, (self.model,)  # to pickle it by its content

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
        return self._sampled(text, rate, int)

    def _sampled(self, text: str, rate: float, kind: type[T]) -> list[T]:
        """Returns the subwords that are drawn: their places in the SentencePiece model, or their
        text."""
        # nbest_size=-1: from all segmentations, not only the best n. BPE-dropout ignores it.
        options = {"enable_sampling": True, "alpha": rate, "nbest_size": -1, "out_type": kind}
        if not self._symbols:
            return self._processor.encode(text, **options)
        # A model of type unigram would sometimes draw the parts of a symbol. So the text between
        # symbols is sampled, to whose start SentencePiece must not add a space.
        found: list[T] = []
        for part in filter(None, self._split.split(self._processor.normalize(text))):
            # Without sampling, a symbol is one subword.
            own = {"out_type": kind} if part in self._symbols else options
            found += self._unspaced.encode(part, **own)
        return found

    @cached_property
    def final_marks(self) -> frozenset[int]:
        ids = map(self._processor.piece_to_id, FINAL_MARKS)
        return frozenset(ids) - {self.unk}

    @cached_property
    def _symbols(self) -> dict[str, int]:
        """The user-defined symbols of the SentencePiece model, and their places in it."""
        proto = model_proto(self.model)
        kind = proto.SentencePiece.USER_DEFINED
        return {piece.piece: i for i, piece in enumerate(proto.pieces) if piece.type == kind}

    @property
    def user_symbols(self) -> dict[str, int]:
        return self._symbols

    def with_symbols(self, symbols: Sequence[str]) -> Self:
        return type(self)(model_with_symbols(self.model, symbols))

    @cached_property
    def _split(self) -> re.Pattern:
        """Finds the symbols in a text. Where several begin, it takes the longest, as encoding
        does."""
        longest_first = sorted(self._symbols, key=len, reverse=True)
        return re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    @cached_property
    def _unspaced(self) -> sentencepiece.SentencePieceProcessor:
        """The model, but it adds no space to the start of a text, and removes none there."""
        processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)
        processor.override_normalizer_spec(add_dummy_prefix=False, remove_extra_whitespaces=False)
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
        return self.model


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

    def with_symbols(self, symbols: Sequence[str]) -> Self:
        require_text(symbols, {self._tokens[i] for i in self._special})
        return type(self)(list(dict.fromkeys([*self._tokens, *symbols])))


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


def model_proto(model: bytes) -> ModelProto:
    """Returns the content of a SentencePiece model."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # few callers need it

    return ModelProto.FromString(model)


def require_text(symbols: Sequence[str], special: set[str]) -> None:
    """
    Raises:
        UsageError: a symbol is one of the special subwords.
    """
    if taken := [symbol for symbol in symbols if symbol in special]:
        raise UsageError(
            f"{taken[0]} is a special subword of the vocabulary, and can't be a symbol"
        )


def model_with_symbols(model: bytes, symbols: Sequence[str]) -> bytes:
    """Returns a SentencePiece model in which some strings are symbols of the user's own. All other
    subwords keep their places and scores.

    Raises:
        UsageError: a string is a special subword.
    """
    proto = model_proto(model)
    kinds = proto.SentencePiece
    known = {piece.piece: piece for piece in proto.pieces}
    ordinary = {kinds.NORMAL, kinds.UNUSED, kinds.USER_DEFINED}
    require_text(symbols, {text for text, piece in known.items() if piece.type not in ordinary})
    own = {text for text, piece in known.items() if piece.type == kinds.USER_DEFINED}
    new = [symbol for symbol in dict.fromkeys(symbols) if symbol not in own]
    for symbol in new:
        piece = known[symbol] if symbol in known else proto.pieces.add(piece=symbol, score=0.0)
        piece.type = kinds.USER_DEFINED
    return proto.SerializeToString() if new else model
