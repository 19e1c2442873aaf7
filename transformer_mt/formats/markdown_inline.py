"""The inline markup of Markdown, with its places.

markdown-it-py reads Markdown as CommonMark has it, but does not tell where in a paragraph its
markup is. Its rules are run one by one here, which shows what each of them took.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

# What GitHub and others know beyond CommonMark, and addresses, which no model knows.
_BEYOND = re.compile(
    r"\[\^[^\]\s]+\]:?"  # a footnote, or a reference to one
    r"|\A\[[ xX]\](?=[ \t])"  # a box to check
    r"""|\b(?:https?|ftp)://[^\s<>]*[^\s<>.,;:!?)\]}'"、。，；：！？）」』》]"""
)
_HTML_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9-]*)[^>]*?(/?)>")
_HTML_VOID = frozenset(("area", "br", "embed", "hr", "img", "input", "source", "wbr"))
_HTML_CODE = frozenset(("code", "kbd", "pre", "samp", "var"))
# The tokens of a row of `*`, `_` or `~`.
_DELIMITERS = frozenset(
    ("text", "em_open", "em_close", "strong_open", "strong_close", "s_open", "s_close")
)


@dataclass
class Span:
    """A range of a text.

    Attributes:
        kind: "text"; or "mark", "open", "close" of markup. Those that open and close are pairs,
            the inner ones within the outer ones.
        value: of a text, with escapes and line ends resolved; of markup, as it is written.
        is_emphasis: whether markup is one of `*`, `_` and `~~`, which count only beside letters.
    """

    kind: str
    start: int
    end: int
    value: str
    is_emphasis: bool = False


class _State(StateInline):
    """What rules read and write, with what each of them took."""

    def __init__(self, source: str, markdown: MarkdownIt, env: MutableMapping[str, Any]) -> None:
        super().__init__(source, markdown, env, [])
        # (start, end, tokens) of each; and the starts of those that are running.
        self.taken: list[tuple[int, int, list[Token]]] = []
        self.running: list[int] = []
        # The texts of links, by the starts of the links.
        self.labels: dict[int, tuple[int, int]] = {}


class _Parser(ParserInline):
    def tokenize(self, state: StateInline) -> None:
        """Runs the rules, as the method that this replaces does."""
        if not isinstance(state, _State):  # the text of an image
            super().tokenize(state)
            return
        if state.running:
            state.labels[state.running[-1]] = (state.pos, state.posMax)
        end, rules = state.posMax, self.ruler.getRules("")
        while state.pos < end:
            start, count, had_text = state.pos, len(state.tokens), bool(state.pending)
            state.running.append(start)
            may_nest = state.level < state.md.options["maxNesting"]
            if not (may_nest and any(rule(state, False) for rule in rules)):
                state.pending += state.src[state.pos]
                state.pos += 1
            state.running.pop()
            tokens = state.tokens[count:]
            if had_text and tokens and tokens[0].type == "text":
                del tokens[0]  # the text before it
            state.taken.append((start, state.pos, tokens))
        if state.pending:
            state.pushPending()


def parser() -> MarkdownIt:
    """Returns a parser of the blocks of CommonMark, and of tables. Inline content is not parsed."""
    markdown = MarkdownIt("commonmark")
    markdown.inline = _Parser()
    markdown.configure("commonmark").enable(["table", "strikethrough"])
    markdown.inline.ruler2.disable("fragments_join")
    markdown.core.ruler.enableOnly(["normalize", "block"])
    return markdown


def spans(source: str, markdown: MarkdownIt, env: MutableMapping[str, Any]) -> list[Span]:
    """Returns what a text consists of.

    Args:
        source: the content of a block, without what begins its lines.
        env: what the document defines, as the parser left it.
    """
    state = _State(source, markdown, env)
    markdown.inline.tokenize(state)
    for rule in markdown.inline.ruler2.getRules(""):
        rule(state)
    found = _paired(_with_tags(_with_beyond(list(_found(state)), source), source))
    for span, following in itertools.pairwise(found):
        if span.kind == "text" and source[following.start] == "\n":
            span.value = span.value.rstrip(" ")
    return [span for span in found if span.value or span.kind != "text"]


def _found(state: _State) -> Iterator[Span]:
    """Yields what the rules took, in the order of the text."""
    source = state.src
    link_ends: list[Span] = []
    order = {id(token): place for place, token in enumerate(state.tokens)}
    done = 0
    for start, end, tokens in sorted(state.taken, key=lambda taken: taken[0]):
        if start < done:
            continue
        while link_ends and link_ends[-1].start <= start:
            yield link_ends.pop()
        kinds = [token.type for token in tokens]
        if start in state.labels and "link_open" in kinds:
            label_start, label_end = state.labels[start]
            label = source[label_start:label_end]
            closing = source[label_end:end]
            if label.startswith("^"):  # a footnote that looks like a link
                yield Span("mark", start, end, source[start:end])
                done = end
                continue
            if closing in ("]", "][]"):  # the text is the name of the link too
                closing = f"][{label}]"
            yield Span("open", start, label_start, source[start:label_start])
            link_ends.append(Span("close", label_end, end, closing))
        elif not tokens:
            yield Span("text", start, end, source[start:end])
        elif kinds == ["text_special"]:
            yield Span("text", start, end, tokens[0].content)
        elif kinds == ["softbreak"]:
            yield Span("text", start, end, _joint(source, start, end))
        elif kinds == ["hardbreak"]:
            yield Span("mark", start, end, "  \n" if source[start] == "\n" else "\\\n")
        elif set(kinds) <= _DELIMITERS:
            # One of `~~~` may have changed its place.
            yield from _delimiters(start, sorted(tokens, key=lambda t: order[id(t)]), source)
        else:
            yield Span("mark", start, end, source[start:end])
    yield from reversed(link_ends)


def _delimiters(start: int, tokens: list[Token], source: str) -> Iterator[Span]:
    """Yields what a row of `*`, `_` or `~` is: each token has one of them, or two of `~`."""
    marker = source[start]
    place, index = start, 0
    while index < len(tokens):
        token = tokens[index]
        following = tokens[index + 1].type if index + 1 < len(tokens) else ""
        # `**` is two tokens, of which the outer one is left without content.
        if token.type == "strong_close" or (token.type == "text" and following == "strong_open"):
            is_pair = token.type == "strong_close" or token.content == ""
        else:
            is_pair = False
        if is_pair:
            kind = "close" if token.type == "strong_close" else "open"
            yield Span(kind, place, place + 2, marker * 2, is_emphasis=True)
            place, index = place + 2, index + 2
            continue
        size = len(token.content or token.markup)
        if token.type == "text":
            yield Span("text", place, place + size, source[place : place + size])
        else:
            kind = token.type.rpartition("_")[2]
            yield Span(kind, place, place + size, marker * size, is_emphasis=True)
        place, index = place + size, index + 1


def _joint(source: str, start: int, end: int) -> str:
    """Returns what is between two lines: nothing between characters that have no space between."""
    before, after = source[:start].rstrip()[-1:], source[end : end + 1]
    wide = [
        bool(character)
        and unicodedata.east_asian_width(character) in "WF"
        and not unicodedata.name(character, "").startswith("HANGUL")
        for character in (before, after)
    ]
    return "" if all(wide) else " "


def _with_beyond(found: list[Span], source: str) -> list[Span]:
    """Finds what CommonMark takes for text."""
    result: list[Span] = []
    text: list[Span] = []

    def flush() -> None:
        if not text:
            return
        whole, first = "".join(span.value for span in text), text[0].start
        place = 0
        for match in _BEYOND.finditer(whole):
            if match[0] in ("[ ]", "[x]", "[X]") and first > 0:
                continue
            start, end = match.span()
            result.append(Span("text", first + place, first + start, whole[place:start]))
            result.append(Span("mark", first + start, first + end, match[0]))
            place = end
        result.append(Span("text", first + place, first + len(whole), whole[place:]))
        text.clear()

    for span in found:
        if span.kind == "text" and span.value == source[span.start : span.end]:
            text.append(span)
        else:
            flush()
            result.append(span)
    flush()
    return [span for span in result if span.end > span.start]


def _with_tags(found: list[Span], source: str) -> list[Span]:
    """Makes `<kbd>` and the like one mark with what is in them, and other tags pairs."""
    result: list[Span] = []
    opened: dict[str, list[int]] = {}
    for span in found:
        result.append(span)
        tag = _HTML_TAG.fullmatch(span.value) if span.kind == "mark" else None
        if not tag or tag[3] or tag[2].lower() in _HTML_VOID:
            continue
        name = tag[2].lower()
        if not tag[1]:
            span.kind = "open"
            opened.setdefault(name, []).append(len(result) - 1)
            continue
        span.kind = "close"
        places = opened.get(name, [])
        if places and name in _HTML_CODE:
            inside = result[places.pop() :]
            del result[-len(inside) :]
            start = inside[0].start
            result.append(Span("mark", start, span.end, source[start : span.end]))
    return result


def _paired(found: list[Span]) -> list[Span]:
    """Makes what has no other one, or ends outside the pair that it began in, stand alone."""
    opened: list[Span] = []
    matched: set[int] = set()
    for span in found:
        if span.kind == "open":
            opened.append(span)
        elif span.kind == "close":
            for depth in reversed(range(len(opened))):
                if _closes(opened[depth], span):
                    matched |= {id(span), id(opened[depth])}
                    del opened[depth:]
                    break
    for span in found:
        if span.kind in ("open", "close") and id(span) not in matched:
            span.kind = "mark"
    return found


def _closes(opening: Span, closing: Span) -> bool:
    if opening.is_emphasis or closing.is_emphasis:
        return opening.value == closing.value
    if opening.value == "[":
        return closing.value.startswith("]")
    first, second = _HTML_TAG.fullmatch(opening.value), _HTML_TAG.fullmatch(closing.value)
    return bool(first and second and first[2].lower() == second[2].lower())
