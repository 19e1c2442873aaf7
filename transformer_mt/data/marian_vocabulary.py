"""The vocabularies of imported models: SentencePiece models split the text, and lists number the
subwords."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import sentencepiece

from transformer_mt.data.vocabulary import (
    FINAL_MARKS,
    SPACE,
    Place,
    SentencePieceVocabulary,
    model_with_symbols,
    require_text,
)

if TYPE_CHECKING:
    from typing_extensions import Self


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
        parts = list(map(self._without_token, texts))
        encoded = self._processor.encode([rest for _, rest, _ in parts], num_threads=1)
        unknown = self._processor.unk_id()
        found = []
        for (token, rest, _), numbers in zip(parts, encoded, strict=True):
            if unknown in numbers:
                # The list may have a subword that the SentencePiece model lacks.
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
        require_text(symbols, {self.ids.pieces[i] for i in self.special})
        new = [symbol for symbol in symbols if symbol not in self.language_tokens]
        pieces = tuple(dict.fromkeys([*self.ids.pieces, *new]))
        return type(self)(model_with_symbols(self.model, new), replace(self.ids, pieces=pieces))

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
