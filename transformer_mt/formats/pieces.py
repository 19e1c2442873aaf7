"""Pieces of inline markup in a text: what a unit shows of them, and where a translation has them.

A translation may have lost pieces, or have them twice, or a pair in the wrong order. What is
written is well-formed all the same: a piece stands there as often as in the source at most, and a
pair stands there as a pair or not at all.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from transformer_mt.formats.document import MARK_END, MARK_START, MARKUP, clean

_SPLIT = re.compile(f"({MARKUP.pattern})")
_END_OF_WORD = re.compile(r"[^\W\d_]*\Z")
_START_OF_WORD = re.compile(r"[^\W\d_]*")


@dataclass(eq=False)
class Piece:
    """A piece of inline markup.

    Attributes:
        shown: what the text of a unit has of it, between MARK_START and MARK_END.
        written: what the file has; a range, or what the format needs to write it.
        partner: the other one of a pair; None for a piece that stands alone.
        opens: whether it is the first one of a pair.
        may_be_lost: whether it is left out if a translation lost it. Other pieces that stand alone
            are then put at the end.
    """

    shown: str
    written: Any
    partner: Piece | None = None
    opens: bool = False
    may_be_lost: bool = False

    def pair_with(self, closing: Piece) -> None:
        self.partner, self.opens = closing, True
        closing.partner = self


def is_translatable(text: str) -> bool:
    """Returns whether a text without markup has a letter, in any script."""
    return any(character.isalpha() for character in text)


def words_of(items: Sequence[str | Piece]) -> str:
    """Returns the text without the markup."""
    return "".join(item for item in items if isinstance(item, str))


def text_of(items: Sequence[str | Piece]) -> str:
    """Returns the text as a unit has it."""
    return "".join(
        clean(item) if isinstance(item, str) else f"{MARK_START}{clean(item.shown)}{MARK_END}"
        for item in items
    )


def with_whole_words(items: Sequence[str | Piece]) -> list[str | Piece]:
    """Moves the ends of pairs that are inside a word, such as `<b>docu</b>ment`, to the end of the
    word, because no translation has them there, and a part of a word is not translated well.

    An index, as in `Vmax`, stays: only small letters are taken for a word, at least two before the
    end of the pair and one after it. So do scripts without small letters.
    """
    result: list[str | Piece] = []
    for is_text, group in groupby(items, lambda item: isinstance(item, str)):
        own = list(group)
        result += [words_of(own)] if is_text else own
    for place in range(1, len(result) - 1):
        before, item, after = result[place - 1 : place + 2]
        if isinstance(item, str) or item.partner is None:
            continue
        if not (isinstance(before, str) and isinstance(after, str)):
            continue
        if before[-2:].isalpha() and before[-2:].islower() and after[:1].islower():
            if len(before) > 1 and item.opens:
                cut = _END_OF_WORD.search(before).start()
                result[place - 1 : place + 2] = [before[:cut], item, before[cut:] + after]
            elif len(before) > 1:
                cut = _START_OF_WORD.match(after).end()
                result[place - 1 : place + 2] = [before + after[:cut], item, after[cut:]]
    return [item for item in result if item != ""]


def blanks_apart(items: Sequence[str | Piece]) -> list[str | Piece]:
    """Makes the blanks at the ends of texts items of their own, so that `core` leaves them out."""
    result: list[str | Piece] = []
    for item in items:
        if isinstance(item, str):
            start = len(item) - len(item.lstrip())
            end = max(len(item.rstrip()), start)
            result += [part for part in (item[:start], item[start:end], item[end:]) if part]
        else:
            result.append(item)
    return result


def core(items: Sequence[str | Piece]) -> tuple[int, int]:
    """Returns the range of the items without the markup and the blanks around them.

    What stands around a text keeps its place without a translation's help.
    """
    places = {item: index for index, item in enumerate(items) if isinstance(item, Piece)}
    before = [0]  # how many items with words there are before each place
    for item in items:
        before.append(before[-1] + (isinstance(item, str) and bool(item.strip())))

    def other_end(place: int) -> int:
        item = items[place]
        return place if isinstance(item, str) or item.partner is None else places[item.partner]

    first, end = 0, len(items)
    while first < end:
        left_end, right_start = other_end(first) + 1, other_end(end - 1)
        if before[left_end] == before[first]:
            first = left_end
        elif before[end] == before[right_start]:
            end = right_start
        elif left_end == end and isinstance(items[first], Piece):  # a pair around everything
            first, end = first + 1, end - 1
        else:
            break
    return first, end


def arrange(items: Sequence[str | Piece], translation: str) -> list[str | Piece]:
    """Returns the texts and pieces of a translation, in its order.

    Args:
        items: those of the source.
        translation: a text as `text_of` makes it. Pieces that the source has not are left out.
    """
    free: defaultdict[str, deque[Piece]] = defaultdict(deque)
    for item in items:
        if isinstance(item, Piece) and (item.opens or item.partner is None):
            free[clean(item.shown)].append(item)
    result: list[str | Piece | None] = []
    opened: list[int] = []  # the places in `result` of what is not closed yet
    placed: set[Piece] = set()
    for part in _SPLIT.split(translation):
        if not MARKUP.fullmatch(part):
            result.append(clean(part))
            continue
        shown = clean(part)
        depth = _closed_by(shown, opened, result)
        if depth is not None:
            for place in opened[depth + 1 :]:
                result[place] = None  # it would end outside the pair that it began in
            result.append(_piece(result, opened[depth]).partner)
            del opened[depth:]
        elif free[shown]:
            piece = free[shown].popleft()
            placed.add(piece)
            if piece.opens:
                opened.append(len(result))
            result.append(piece)
    for place in opened:
        result[place] = None
    result += [
        item
        for item in items
        if isinstance(item, Piece)
        and item.partner is None
        and not item.may_be_lost
        and item not in placed
    ]
    return [item for item in result if item is not None and item != ""]


def _closed_by(
    shown: str, opened: Sequence[int], result: Sequence[str | Piece | None]
) -> int | None:
    """Returns which of the opened pairs a piece closes: the innermost one that ends like this."""
    for depth in reversed(range(len(opened))):
        if clean(_piece(result, opened[depth]).partner.shown) == shown:
            return depth
    return None


def _piece(result: Sequence[str | Piece | None], place: int) -> Piece:
    piece = result[place]
    assert isinstance(piece, Piece)
    return piece
