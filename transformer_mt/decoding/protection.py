"""The symbols of protected spans in a line that is translated: what the output must contain, and
how the spans come back into the text.

A model that was trained with data.protect reads and writes a symbol in place of each span, and the
search sees to it that the output has each symbol exactly once. An engine whose search can't do this
gets the missing symbols by the attention. `decoding.tags` is for models without symbols.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from transformer_mt.data.spans import CLOSING, OPENING, SYMBOL, SYMBOLS, Replaced
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.constraints import Constraints
from transformer_mt.decoding.engine import (
    Constraint,
    Engine,
    Hypotheses,
    Hypothesis,
    Search,
    Sentence,
)

_ALL = frozenset(SYMBOLS)


def symbol_constraints(ids: Iterable[int], subwords: Subwords) -> tuple[Constraint, ...]:
    """The constraints that follow from the symbols of a source, in its order."""
    of_source = {i: name for name, i in subwords.source.user_symbols.items() if name in _ALL}
    names = [of_source[i] for i in ids if i in of_source]
    target = subwords.target.user_symbols
    places = {name: place for place, name in enumerate(names)}
    partner = dict(zip(CLOSING, OPENING, strict=True))
    found = []
    for name in names:
        after = places.get(partner.get(name, ""), -1)
        found.append(Constraint(((target[name],),), is_symbol=True, after=after, is_once=True))
    return tuple(found)


def spelled(text: str, subwords: Subwords, is_within: bool = True) -> tuple[tuple[int, ...], ...]:
    """The ways to write a text with the subwords of the target: at the start of a word and, if
    asked for, within one. Empty if it has a character that these lack."""
    target = subwords.target
    forms = [
        tuple(ids)
        for ids in (target.encode(text), *([target.encode_within(text)] if is_within else []))
        if ids and target.unk not in ids and target.decode(ids).strip() == text
    ]
    return tuple(dict.fromkeys(forms))


@dataclass(frozen=True)
class SymbolSearch(Search):
    """A search whose outputs have all symbols of their sources, whatever the engine can do.

    Attributes:
        can_align: whether the engine can give attention.
    """

    can_align: bool = True

    def found(self, engine: Engine) -> Hypotheses:
        """As `Search.found`."""
        found = super().found(engine)
        rules = [Constraints(sentence.symbol_constraints) for sentence in self.sentences]
        broken = [
            number
            for number, (own, its_rules) in enumerate(zip(found, rules, strict=True))
            if not all(its_rules.has_symbols(hypothesis.ids) for hypothesis in own)
        ]
        if not broken:
            return found
        attended = self.with_attention(engine, found, broken) if self.can_align else found
        found = list(found)
        for number in broken:
            sentence = self.sentences[number]
            found[number] = [repaired(hypothesis, sentence) for hypothesis in attended[number]]
        return found


class Original(NamedTuple):
    """A span that a symbol stands for.

    Attributes:
        space_before, space_after: whether a space or an end of the line is there in the source.
    """

    text: str
    space_before: bool
    space_after: bool


def restored(text: str, originals: dict[str, Original], add_spaces: bool) -> Replaced:
    """The text of an output, in which the originals take the places of the symbols.

    Args:
        add_spaces: whether a span is separated from a word as it is in the source. The model does
            this by itself; it is for symbols that were put into an output.

    Returns: `text` is the output with symbols, and `original` that with the spans.
    """
    replacements = []
    for match in SYMBOL.finditer(text):
        own = originals.get(match[0], Original("", False, False))
        start, end = match.span()
        before = add_spaces and own.space_before and text[:start][-1:].isalnum()
        after = add_spaces and own.space_after and text[end : end + 1].isalnum()
        replacements.append((start, end, " " * before + own.text + " " * after))
    found = Replaced.of(text, replacements)
    return Replaced(text, found.text, found.spans, found.places)


def repaired(hypothesis: Hypothesis, sentence: Sentence) -> Hypothesis:
    """An output with all symbols of its source, each once: an engine that can't be given
    constraints may leave some out, or write some too often.

    A symbol that is missing comes before the subword that attends most to what follows it in the
    source; one that closes a pair, after the subword that attends most to what precedes it.
    Without attention, a symbol comes to the same relative place.
    """
    constraints, attention = sentence.symbol_constraints, hypothesis.attention
    rules = Constraints(constraints)
    ids: list[int] = []
    rows: list[int] = []  # the row of the attention that each id has; -1 for what is put in
    state = rules.start
    for row, i in enumerate(hypothesis.ids):
        if i in rules.symbols:
            if i not in rules.may_follow(state):
                continue
            state = rules.after(state, i) or state
        ids.append(i)
        rows.append(row)
    symbols = dict(zip(rules.symbols, sentence.symbol_places, strict=True))
    words = [place for place in range(len(sentence.source)) if place not in symbols.values()]
    for i, place in symbols.items():
        if i in ids:
            continue
        closes = constraints[rules.symbols[i]].after >= 0
        near = [word for word in words if (word < place if closes else word > place)]
        if not near:
            best = 0 if closes else len(ids)
        elif attention is None or not len(attention):
            best = round(place / len(sentence.source) * len(ids))
        else:
            own = attention[rows, near[-1] if closes else near[0]]
            best = int(np.where(np.array(rows) < 0, -np.inf, own).argmax()) + closes
        nearest = sorted(range(len(ids) + 1), key=lambda at: abs(at - best))
        at = next(at for at in nearest if rules.is_nested([*ids[:at], i, *ids[at:]]))
        ids.insert(at, i)
        rows.insert(at, -1)
    return replace(hypothesis, ids=ids, attention=None, is_repaired=True)
