"""Reads lines of text as the sentences that an engine translates."""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config
from transformer_mt.data.annotation import outside_annotations
from transformer_mt.data.normalization import examples_of, is_blank
from transformer_mt.data.spans import SYMBOL, SYMBOLS, Replaced, SpanFinder, has_symbols, symbol_ids
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import WordVocabulary, seeded
from transformer_mt.decoding.engine import Constraint, Limits, Sentence
from transformer_mt.decoding.given_terms import GivenTerms
from transformer_mt.decoding.output import Line
from transformer_mt.decoding.protection import Original, spelled, symbol_constraints
from transformer_mt.decoding.segments import Segment, segments
from transformer_mt.decoding.tags import Tag, untagged
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.languages import (
    Place,
    has_spaces,
    joins_sentences_with_space,
    sentences,
)

# What is read as a whole has up to this number of subwords, or up to data.max_length if that is
# more: a pair that is scored or aligned, and a sampled segmentation. The memory of attention grows
# with its square, and every export has at least this number of positions.
MAX_AT_ONCE = 1_000
# Marks behind a span that are no part of what is translated after it, and the ends of sentences.
_AFTER_SPAN = " ,;:.!?)]-–—，；：。！？）、"
_FINAL = (".", "!", "?", "。", "！", "？")
# Is called with a warning and with what is counted, as `console.warn`.
Warn = Callable[[str, str], object]


@dataclass(frozen=True)
class Reading:
    """What is read of a line.

    Attributes:
        sentences: what an engine reads of each segment.
        replaced: the line with symbols in place of its spans, or without its tags; None if the line
            has no protected span.
        tags: those of a line that is read without them.
        way: how the spans come into the translation, such as BY_SEARCH; None if there are none.
    """

    segments: list[Segment]
    sentences: list[Sentence]
    replaced: Replaced | None = None
    tags: list[Tag] = field(default_factory=list)
    way: str | None = None


# How the spans of a line come into its translation, from the surest way to the least sure: the
# search writes them; the word alignment tells where they belong; the line is cut at them.
BY_SEARCH, BY_ALIGNMENT, BY_CUTTING = "search", "alignment", "cutting"


@dataclass(frozen=True)
class LineReader:
    """Reads lines of text as the sentences that an engine translates.

    Attributes:
        config: the languages, the tags, the lengths, and how to translate.
        warn: is called with warnings about lines, as `console.warn`.
        limits: what the engine can't do.
        terms: those whose translations are given.
    """

    subwords: Subwords
    config: Config
    warn: Warn
    limits: Limits = field(default_factory=dict)
    terms: GivenTerms | None = None

    @property
    def decoding(self) -> DecodingConfig:
        return self.config.decoding

    @property
    def longest(self) -> int:
        """The greatest length of a segment in subwords."""
        return self.decoding.max_source_length or self.config.data.max_length

    @property
    def most_at_once(self) -> int:
        """The greatest length in subwords of what is not cut; see MAX_AT_ONCE."""
        return max(MAX_AT_ONCE, self.config.data.max_length)

    def read(self, line: Line, number: int) -> Reading:
        """
        Args:
            number: that of the line, for messages and for the random numbers of sampling.
        """
        finder = self.finder
        if finder is None or not finder.find(line.text):
            return self._read(line, self.segments(line.text), number)
        if self.has_symbols:
            return self._with_symbols(line, number, finder)
        return self._without_tags(line, number, finder)

    @cached_property
    def finder(self) -> SpanFinder | None:
        """Finds protected spans; None if nothing is protected."""
        asked = self.decoding.protect
        settings = self.config.data.protect if asked is None else asked
        return SpanFinder(settings, self.config.tags) if settings else None

    @cached_property
    def has_symbols(self) -> bool:
        """Whether the model reads and writes symbols in place of spans."""
        return has_symbols(self.subwords)

    @property
    def can_constrain(self) -> bool:
        """Whether the search can see to it that outputs have what they must."""
        return "constraints" not in self.limits and not self.decoding.sampling

    def _with_symbols(self, line: Line, number: int, finder: SpanFinder) -> Reading:
        replaced = finder.in_symbols(line.text)
        originals = [
            Original(
                line.text[start:end],
                line.text[:start][-1:] in ("", " "),
                line.text[end : end + 1] in ("", " "),
            )
            for start, end in replaced.spans
        ]
        names = [replaced.text[start:end] for start, end in replaced.places]
        prefix = line.prefix
        if prefix:  # Its spans have the symbols of those of the line.
            texts = [original.text for original in originals]
            known = dict(zip(reversed(texts), reversed(names), strict=True))
            spans = ((s.start, s.end, prefix[s.start : s.end]) for s in finder.find(prefix))
            its = ((start, end, known.get(text, text)) for start, end, text in spans)
            prefix = Replaced.of(prefix, its).text
        own = self.segments(replaced.text)
        of_ids = {self.subwords.source.user_symbols[name]: name for name in SYMBOLS}
        left = iter(zip(names, originals, strict=True))
        for place, segment in enumerate(own):
            count = sum(i in of_ids for i in segment.ids)
            text = SYMBOL.sub("", replaced.text[segment.start : segment.end])
            is_copied = not any(map(str.isalnum, text))
            its_spans = dict(islice(left, count))
            own[place] = replace(segment, originals=its_spans, is_copied=is_copied)
        reading = self._read(Line(replaced.text, prefix), own, number)
        sentences = [
            replace(
                sentence,
                constraints=(
                    *symbol_constraints(sentence.source, self.subwords),
                    *sentence.constraints,
                ),
                symbol_places=tuple(p for p, i in enumerate(sentence.source) if i in of_ids),
            )
            for sentence in reading.sentences
        ]
        return replace(reading, sentences=sentences, replaced=replaced, way=BY_SEARCH)

    def _without_tags(self, line: Line, number: int, finder: SpanFinder) -> Reading:
        plain = untagged(line.text, finder)
        text, prefix = plain.replaced.text, untagged(line.prefix, finder).replaced.text
        phrases = {}
        if self.can_constrain:
            for start, end in plain.kept:
                if forms := spelled(text[start:end], self.subwords):
                    phrases[start] = Constraint(forms, is_once=True)
        way = BY_SEARCH
        if len(phrases) == len(plain.kept):
            own = self.segments(text)
        else:
            own, phrases, way = self._between_spans(text, plain.kept), {}, BY_CUTTING
        reading = self._read(Line(text, prefix), own, number)
        need_attention = bool(plain.tags) and "alignment" not in self.limits
        sentences = [
            replace(
                sentence,
                constraints=(
                    *(own for at, own in phrases.items() if segment.start <= at < segment.end),
                    *sentence.constraints,
                ),
                need_attention=need_attention,
            )
            for segment, sentence in zip(own, reading.sentences, strict=True)
        ]
        if plain.tags and way == BY_SEARCH:
            way = BY_ALIGNMENT
        return replace(
            reading, sentences=sentences, replaced=plain.replaced, tags=plain.tags, way=way
        )

    def _between_spans(self, line: str, spans: list[Place]) -> list[Segment]:
        """The segments of a line that is cut at some spans, which stand between their translations
        as they are."""
        own: list[Segment] = []
        done = 0  # the end of the text that is in `own`
        between = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(line)]
        for start, end in zip(*between, strict=True):
            if not any(map(str.isalnum, line[start:end])):
                continue
            start += len(line[start:end]) - len(line[start:end].lstrip(_AFTER_SPAN))
            for place, segment in enumerate(self.segments(line[:end], start)):
                before = segment.before if place else line[done : segment.start]
                is_fragment = end < len(line) and not line[:end].rstrip().endswith(_FINAL)
                own.append(replace(segment, before=before, is_fragment=is_fragment))
            done = own[-1].end
        if own:
            own[-1] = replace(own[-1], after=line[done:])
        return own

    def _read(self, line: Line, own: list[Segment], number: int) -> Reading:
        if not all(segment.begins_sentence for segment in own):
            self.warn(
                f"line {number}: a sentence of more than {self.longest} subwords was cut, and "
                "translated in parts",
                "lines have sentences that were translated in parts",
            )
        self._warn_of_unknown(line.text, [i for segment in own for i in segment.ids], number)
        self._warn_of_language(own, line.text, number)
        prefixes = self._prefixes(line.prefix, len(own), number)
        # The random numbers of a segment follow from the line and the place in it.
        sentences = []
        for place, (segment, prefix) in enumerate(zip(own, prefixes, strict=True)):
            text, ids = self._with_terms(line.text, segment)
            random_number = (number << 20) + place
            others = self._other_segmentations(text, ids, segment.tags)
            constraints: tuple[Constraint, ...] = ()
            # Nothing is looked for in the rest of a word that was cut.
            if self.terms is not None and self.terms.way == "search" and not segment.first:
                constraints = self.terms.constraints(line.text[segment.start : segment.end])
            source = segment.tags + ids
            sentences.append(Sentence(source, prefix, random_number, others, constraints))
        return Reading(own, sentences)

    def _with_terms(self, line: str, segment: Segment) -> tuple[str, list[int]]:
        """The text of a segment and its ids. Where the model reads given translations, they are in
        both."""
        text = characters(line[segment.start : segment.end])
        if self.terms is None or self.terms.way != "annotation":
            return text, segment.ids
        if self._encode(text) != segment.ids:  # a word was cut
            return text, segment.ids
        longer = self.terms.annotated(text)
        ids = self._encode(longer)
        # The rest must be the subwords of the segment, so that its words can be told.
        own = outside_annotations(ids, self.subwords)
        if len(ids) > self.most_at_once or [ids[place] for place in own] != segment.ids:
            return text, segment.ids
        return longer, ids

    def segments(self, line: str, start: int = 0) -> list[Segment]:
        """The segments of a line. The tags before it hold for each of them.

        Args:
            start: where the text begins that is cut.
        """
        if is_blank(line[start:]):
            return []
        end_of_tags = self.end_of_tags(line)
        tags = self._encode(line[:end_of_tags].strip()) or self.put_before(line)
        own = segments(
            line,
            self._encode,
            max(1, self.longest - len(tags)),
            self.config.data.source_lang,
            split_sentences=bool(self.decoding.split_sentences),
            start=max(start, end_of_tags),
            symbols=self._symbols,
        )
        for number, (last, segment) in enumerate(pairwise(own), 1):
            before = self._between(line[last.end : segment.start], segment)
            own[number] = replace(segment, tags=tags, before=before)
        if own and start < end_of_tags:
            # The first segment begins with the tags as they stand in the line.
            begin = len(line) - len(line.lstrip())
            own[0] = replace(own[0], ids=tags + own[0].ids, start=begin)
        elif own:
            own[0] = replace(own[0], tags=tags)
        return own

    def put_before(self, line: str) -> list[int]:
        """The ids of `decoding.tag` for a line that has no tags."""
        return [] if self.end_of_tags(line) else self._encode(self.decoding.tag or "")

    @cached_property
    def _symbols(self) -> frozenset[int]:
        """The ids of the symbols that a segment may have only once."""
        return frozenset(symbol_ids(self.subwords.source)) if self.finder else frozenset()

    def end_of_tags(self, text: str) -> int:
        """Where the tags at the start of a text end, which something must follow."""
        match = self._tags.match(text)
        return match.end() if match and text[match.end() :].strip() else 0

    def _between(self, spaces: str, segment: Segment) -> str:
        """What stands before the translation of a segment that is not the first.

        Args:
            spaces: what stands before the segment in the line.
        """
        if not segment.begins_sentence:
            return " " if has_spaces(self.config.data.target_lang) else ""
        if not joins_sentences_with_space(self.config.data.target_lang):
            return ""
        # Where the source language has spaces between sentences, their number stays, even none.
        count = len(spaces) or not joins_sentences_with_space(self.config.data.source_lang)
        return " " * count

    @cached_property
    def _tags(self) -> re.Pattern[str]:
        any_token = "|".join(map(re.escape, self.subwords.source.language_tokens)) or "(?!)"
        any_tag = "|".join(map(re.escape, self.config.tags)) or "(?!)"
        return re.compile(rf"\s*(?:(?:{any_token})\s*|(?:{any_tag})\s+)+")

    def _encode(self, text: str) -> list[int]:
        return self.subwords.source.encode(characters(text))

    def _prefixes(self, prefix: str, count: int, number: int) -> list[list[int]]:
        """The ids with which the output of each of `count` segments begins. Each sentence of the
        prefix is for a segment of its own, and its tags are for all of them."""
        start = self.end_of_tags(prefix)
        tags, text = prefix[:start].strip(), prefix[start:]
        texts = [text]
        if count > 1:
            starts = [place[0] for place in sentences(text, self.config.data.target_lang)][:count]
            texts = [text[a:b].strip() for a, b in pairwise([*starts, len(text)])]
        texts += [""] * (count - len(texts))
        joined = (f"{tags} {own}" if tags else own for own in texts[:count])
        return [self._prefix(own, number) if own else [] for own in joined]

    def _prefix(self, text: str, number: int) -> list[int]:
        """The ids of the prefix of a line, without the spaces at its end, because the model writes
        them before its next word. Warns of what the output can't hold."""
        target, text = self.subwords.target, characters(text).rstrip(" ")
        forms = [text]
        if not isinstance(target, WordVocabulary):
            composed = unicodedata.normalize("NFC", text)
            forms += [composed, composed.rstrip()]
        for form in forms:
            ids = target.encode(form)
            written = target.decode(ids)
            if written == form:
                return ids
        lost = target.unknown(form)
        if not isinstance(target, WordVocabulary):  # which writes the same text in another way
            lost = lost or [character for character in form if character not in written]
        if lost:
            self.warn(
                f"line {number}: the model can't write a part of the prefix: "
                f"{', '.join(examples_of(lost))}",
                "prefixes have parts that the model can't write",
            )
        return ids

    def _other_segmentations(self, text: str, own: list[int], tags: list[int]) -> list[list[int]]:
        """The sampled segmentations of a segment, which depend only on its text and the seed.

        Args:
            own: the ids of the text.
            tags: are read before it.
        """
        count, source = self.decoding.segmentations - 1, self.subwords.source
        if not count:
            return []
        # Half of a word that was cut can't be sampled, because its subwords are not those of a
        # text. It gets its own subwords again.
        if source.encode(text) != own:
            return [tags + own] * count
        rate = self.decoding.segmentation_rate or self.config.subword.sampling
        if rate is None:
            raise ValueError("sampled segmentations need a rate")
        seed = self.decoding.seed, zlib.crc32(text.encode())
        drawn = seeded(seed, lambda: [source.sample(text, rate) for _ in range(count)])
        # A sampled segmentation may have as many subwords as the text has characters.
        return [tags + (ids if len(ids) <= self.most_at_once else own) for ids in drawn]

    def _warn_of_language(self, own: list[Segment], text: str, line: int) -> None:
        """Warns if a model of several target languages is not told into which of them a line is to
        be translated."""
        tokens = self.subwords.source.language_tokens
        if len(tokens) < 2 or not own or {*own[0].tags, *own[0].ids} & {*tokens.values()}:
            return
        unknown = re.match(r"\s*(>>\S+?<<)", text)
        what = f"{unknown[1]} is none of them" if unknown else "it has none"
        others = f" and {len(tokens) - 5} more" if len(tokens) > 5 else ""
        self.warn(
            f"line {line}: the model needs the token of a target language before each line, and "
            f"{what}. Put one of {', '.join(islice(tokens, 5))}{others} before each line, or give "
            "it for all lines in decoding.tag (--tag)",
            "lines have no token of a target language that the model knows",
        )

    def _warn_of_unknown(self, text: str, ids: list[int], line: int) -> None:
        """Warns of a line that the model can't read: more than a fifth of it is unknown."""
        source = self.subwords.source
        unknown, count = ids.count(source.unk), len(ids) - ids.count(source.space)
        if unknown <= count / 5:
            return
        if isinstance(source, WordVocabulary):
            name, end = "tokens", "; this model reads tokenised text with its BPE applied"
        else:
            examples = examples_of("".join(source.unknown(characters(text))))
            name, end = "subwords", f", such as {', '.join(examples)}"
        self.warn(
            f"line {line}: {unknown} of {count} {name} are not in the vocabulary{end}",
            f"lines have {name} that are not in the vocabulary",
        )


def require_tag(tag: str, subwords: Subwords, config: Config) -> None:
    """
    Raises:
        UsageError: a model has no such tag.
    """
    source = subwords.source
    ids = [i for i in source.encode(tag) if i != source.space]
    if len(ids) == 1 and source.unk not in ids:
        return
    known = dict.fromkeys([*config.tags, *source.language_tokens])
    listed = f"its tags are {' '.join(known)}" if known else "it has no tags"
    raise UsageError(f"decoding.tag: {tag}: the model has no such subword; {listed}")


def characters(text: str) -> str:
    """The text, of equal length. Half a surrogate pair is not a character, but text in Python may
    hold one."""
    return text.encode("utf-8", "replace").decode("utf-8")
