"""Vocabularies: text to the ids of subwords and back.

There are three kinds: a SentencePiece model; a list of words, for text with BPE applied; and two
SentencePiece models whose subwords one list numbers, as imported models have them.

Every vocabulary has four distinct special ids: pad, unk, bos and eos. No other module has constants
for them.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

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
        return type(self)(_with_symbols(self.model, symbols))

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
        _require_text(symbols, {self._tokens[i] for i in self._special})
        return type(self)(list(dict.fromkeys([*self._tokens, *symbols])))


@dataclass(frozen=True)
class PieceIds:
    """The ids of an imported model: its subwords in the order of their ids, and the special ids.

    Raises:
        ValueError: a subword is no text or is there twice, or the special ids are not four
            different ones of these.
    """

    pieces: tuple[str, ...]
    pad: int
    unk: int
    bos: int
    eos: int

    def __post_init__(self) -> None:
        for piece in self.pieces:
            if not isinstance(piece, str):
                raise ValueError(f"the subword {piece!r} is not text")
            if re.search("[\ud800-\udfff]", piece):
                raise ValueError(f"the subword {piece!r} is not UTF-8")
        piece, count = Counter(self.pieces).most_common(1)[0] if self.pieces else ("", 0)
        if count > 1:
            raise ValueError(f"the subword {piece!r} is in it more than once")
        names = "pad", "unk", "bos", "eos"
        special = {name: getattr(self, name) for name in names}
        for name, i in special.items():
            if type(i) is not int or not 0 <= i < len(self.pieces):
                raise ValueError(
                    f"{name} is {i!r}, which is no id of its {len(self.pieces):,} subwords"
                )
        if len(set(special.values())) < len(special):
            listed = ", ".join(f"{name} {i}" for name, i in special.items())
            raise ValueError(f"its special ids are not all different: {listed}")

    @classmethod
    def read(cls, content: bytes) -> PieceIds:
        """Reads what `content` returned.

        Raises:
            ValueError: it is something else.
        """
        try:
            values = json.loads(content)
        except RecursionError:
            raise ValueError("its values are nested too deeply") from None
        keys = {"pad", "unk", "bos", "eos", "pieces"}
        if not isinstance(values, dict) or values.keys() != keys:
            raise ValueError(f"expected a mapping with the keys {', '.join(sorted(keys))}")
        if not isinstance(values["pieces"], list):
            raise ValueError("its pieces are not a list")
        return cls(**values | {"pieces": tuple(values["pieces"])})

    def content(self) -> bytes:
        """Returns the special ids and the subwords as JSON, with one subword a line."""
        values = {name: getattr(self, name) for name in ("pad", "unk", "bos", "eos", "pieces")}
        return (json.dumps(values, ensure_ascii=False, indent=0) + "\n").encode()


# A token that names a target language, at the start of a text.
_LANGUAGE_TOKEN = re.compile(r">>.+?<<")


class MarianVocabulary(SentencePieceVocabulary):
    """A vocabulary of OPUS-MT (Tiedemann and Thottingal 2020, https://aclanthology.org/2020.eamt-1.61):
    a SentencePiece model splits the text, and a list numbers the subwords, those of both languages
    or of one. A subword that the list lacks is unknown.

    Text is encoded and decoded as by Hugging Face's MarianTokenizer (without its optional package
    sacremoses): at the start of a text, a token such as >>deu<< that the list has is one subword,
    and the rest is encoded as a text of its own. Special subwords in a text are unknown, and a
    token >>abc<< that the list lacks is ordinary text.

    Args:
        model: the SentencePiece model of this side. It needs no special subwords but unk.
        ids: may be the same for both sides.

    Raises:
        ValueError, RuntimeError: `model` is not a whole model.
    """

    def __init__(self, model: bytes, ids: PieceIds) -> None:
        if not model:
            raise ValueError("it is empty")
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.ids = ids
        self.size = len(ids.pieces)
        self.pad, self.unk, self.bos, self.eos = ids.pad, ids.unk, ids.bos, ids.eos
        self._hidden = {ids.pad, ids.bos, ids.eos}
        self._numbers = {piece: i for i, piece in enumerate(ids.pieces) if i not in self.special}
        self.space = self._numbers.get(SPACE, -1)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.model, self.ids)

    @cached_property
    def _table(self) -> np.ndarray:
        """The id of each subword of the SentencePiece model: int64 (subwords,)."""
        count = self._processor.vocab_size()
        return np.array(self._ids_of(self._processor.id_to_piece(list(range(count)))), np.int64)

    def listed(self) -> tuple[int, int]:
        """Returns how many subwords of the SentencePiece model are in the list, and how many it
        has."""
        return int((self._table != self.unk).sum()), len(self._table)

    def _ids_of(self, pieces: list[str]) -> list[int]:
        return [self._numbers.get(piece, self.unk) for piece in pieces]

    def _without_token(self, text: str) -> tuple[list[int], str, int]:
        """Returns the id of the token at the start of a text, if there is one, the rest of the
        text, and where it begins."""
        match = _LANGUAGE_TOKEN.match(text)
        if match is None or match[0] not in self.language_tokens:
            return [], text, 0
        rest = text[match.end() :].lstrip()
        return [self.language_tokens[match[0]]], rest, len(text) - len(rest)

    def encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    def encode_within(self, text: str) -> list[int]:
        return self._ids_of(self._unspaced.encode(text, out_type=str))

    def encode_all(self, texts: list[str]) -> list[list[int]]:
        tokens, rests, _ = (
            zip(*map(self._without_token, texts), strict=True) if texts else ((),) * 3
        )
        encoded = self._processor.encode(list(rests), num_threads=1)
        unknown = self._processor.unk_id()
        found = []
        for token, rest, numbers in zip(tokens, rests, encoded, strict=True):
            if (
                unknown in numbers
            ):  # The list may have a subword that the SentencePiece model lacks.
                own = self._ids_of(self._processor.encode(rest, out_type=str))
            else:
                own = self._table[numbers].tolist()
            found.append(token + own)
        return found

    def sample(self, text: str, rate: float) -> list[int]:
        token, rest, _ = self._without_token(text)
        return token + self._ids_of(self._sampled(rest, rate, str))

    @cached_property
    def final_marks(self) -> frozenset[int]:
        return frozenset(self._numbers[mark] for mark in FINAL_MARKS if mark in self._numbers)

    @cached_property
    def language_tokens(self) -> dict[str, int]:
        return {p: i for p, i in self._numbers.items() if _LANGUAGE_TOKEN.fullmatch(p)}

    @cached_property
    def user_symbols(self) -> dict[str, int]:
        own = {symbol: self._numbers[symbol] for symbol in self._symbols if symbol in self._numbers}
        return self.language_tokens | own

    def with_symbols(self, symbols: Sequence[str]) -> Self:
        _require_text(symbols, {self.ids.pieces[i] for i in self.special})
        new = [symbol for symbol in symbols if symbol not in self.language_tokens]
        pieces = tuple(dict.fromkeys([*self.ids.pieces, *new]))
        return type(self)(_with_symbols(self.model, new), replace(self.ids, pieces=pieces))

    def decode(self, ids: Iterable[int]) -> str:
        return self._decoded(self._processor.decode(self._visible(ids))).strip()

    def _visible(self, ids: Iterable[int]) -> list[str]:
        """Returns the subwords of the ids that a reader sees, as the SentencePiece model spells
        them."""
        unknown = self._processor.id_to_piece(self._processor.unk_id())
        return [
            unknown if i == self.unk else self.ids.pieces[i] for i in ids if i not in self._hidden
        ]

    @staticmethod
    def _decoded(text: str) -> str:
        # A subword that the SentencePiece model does not know comes back as it is.
        return text.replace(SPACE, " ")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self.ids.pieces[i] for i in ids]

    def places(self, text: str) -> list[Place]:
        token, rest, start = self._without_token(text)
        places = super().places(rest)
        end = len(text[:start].rstrip())
        return [(0, end)] * len(token) + [(a + start, b + start) for a, b in places]

    def decoded_places(self, ids: Iterable[int]) -> list[Place]:
        ids = list(ids)
        visible = self._visible(ids)
        if not visible:
            return [(0, 0)] * len(ids)
        decoded = self._processor.decode(visible, out_type="immutable_proto")
        text = self._decoded(decoded.text)
        before, length = len(text) - len(text.lstrip()), len(text.strip())
        found = iter(self._places(decoded))
        places, end = [], 0
        for i in ids:
            start = end
            if i not in self._hidden:
                start, end = (min(max(place - before, 0), length) for place in next(found))
            places.append((start, end))
        return places

    def content(self) -> bytes:
        return self.ids.content() + self.model


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


def _require_text(symbols: Sequence[str], special: set[str]) -> None:
    """
    Raises:
        UsageError: a symbol is one of the special subwords.
    """
    if taken := [symbol for symbol in symbols if symbol in special]:
        raise UsageError(
            f"{taken[0]} is a special subword of the vocabulary, and can't be a symbol"
        )


def _with_symbols(model: bytes, symbols: Sequence[str]) -> bytes:
    """Returns a SentencePiece model in which some strings are symbols of the user's own. All other
    subwords keep their places and scores.

    Raises:
        UsageError: a string is a special subword.
    """
    proto = model_proto(model)
    kinds = proto.SentencePiece
    known = {piece.piece: piece for piece in proto.pieces}
    ordinary = {kinds.NORMAL, kinds.UNUSED, kinds.USER_DEFINED}
    _require_text(symbols, {text for text, piece in known.items() if piece.type not in ordinary})
    own = {text for text, piece in known.items() if piece.type == kinds.USER_DEFINED}
    new = [symbol for symbol in dict.fromkeys(symbols) if symbol not in own]
    for symbol in new:
        piece = known[symbol] if symbol in known else proto.pieces.add(piece=symbol, score=0.0)
        piece.type = kinds.USER_DEFINED
    return proto.SerializeToString() if new else model
