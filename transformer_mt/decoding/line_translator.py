"""Text in, text out: one line for each line, whatever the line holds."""

from __future__ import annotations

import copy
import math
import re
import threading
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, pairwise, tee
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.data.alignments import NONE, Link, Words, word_count
from transformer_mt.data.languages import has_spaces, joins_sentences_with_space, sentences
from transformer_mt.data.normalization import examples_of, is_blank
from transformer_mt.data.subword import Place, Subwords, Vocabulary, WordVocabulary, seeded, tokens
from transformer_mt.decoding.batch_size import AtOnce, default_at_once, sentences_in
from transformer_mt.decoding.engine import Engine, Search, Sentence, length_limits, length_penalty
from transformer_mt.decoding.lines import Segment, in_windows, segments
from transformer_mt.decoding.output import Aligned, Line, LinePart, Output, Translation
from transformer_mt.utils.console import warn

if TYPE_CHECKING:
    from typing_extensions import Self


# A pair that is scored or aligned is read as a whole up to this number of subwords, or up to
# data.max_length if that is more. The memory of attention grows with its square, and every export
# has at least this number of positions.
MAX_AT_ONCE = 1_000


Item = TypeVar("Item")
Result = TypeVar("Result")
# The ids of a source and of its translation, without bos and eos.
Pair = tuple[list[int], list[int]]
# Is called with the number of lines that have just been computed.
Finished = Callable[[int], object]
# Is called with a warning and with what is counted, as `console.warn`.
Warn = Callable[[str, str], object]
# A batch for an engine, which may be in another process.
Work = Callable[[Engine], Result]
# Runs batches and yields their results in order. A batch None is a pause: nothing more may come for
# a while. Its result is None, and all results before it are yielded before the next batch is read.
Runner = Callable[[Iterator[Work | None]], Iterator[Result | None]]


def ignore(count: int) -> None:
    """Does nothing when lines are computed."""


def _of_pairs(method: str, pairs: list[Pair]) -> Work:
    """A call of an engine's method that has the arguments `sources` and `targets`."""
    return methodcaller(method, *map(list, zip(*pairs, strict=True)))


class LineTranslator:
    """Translates lines with one engine. Several threads may use it; one of them computes at a time.

    Args:
        engine: an engine, or a runner of several.
        max_length: the greatest length of a segment in subwords, if
            `decoding.max_source_length` is null.
        target_lang, source_lang: such as de or zh-CN; they tell where sentences end, and whether
            words have spaces between them.
        at_once: decides how large batches are if `decoding.batch_tokens` is null.
        sampling: the rate of sampled segmentations if `decoding.segmentation_rate` is null.
        tags: words that stand before a source, or before a prefix, and hold for all of its
            sentences.
        warn: is called with warnings about lines, as `console.warn`.
    """

    def __init__(
        self,
        engine: Engine | Runner,
        subwords: Subwords,
        decoding: DecodingConfig,
        max_length: int,
        target_lang: str,
        source_lang: str = "",
        at_once: AtOnce = default_at_once,
        sampling: float | None = None,
        tags: Iterable[str] = (),
        warn: Warn = warn,
    ) -> None:
        self._at_once = at_once
        self._sampling = sampling
        self._run = engine if callable(engine) else _one_by_one(engine)
        self._source = subwords.source
        self._target = subwords.target
        self._decoding = decoding
        self._max_length = max_length
        self._source_lang, self._target_lang = source_lang, target_lang
        any_tag = "|".join(map(re.escape, tags))
        self._tags = re.compile(rf"\s*(?:(?:{any_tag})\s+)+" if any_tag else "")
        self._warn = warn
        sides = (self._source, source_lang), (self._target, target_lang)
        # They are made only if they are needed, because that looks at the whole vocabularies, and
        # only once for all translators that `with_settings` makes.
        self._sides: Callable[[], list[Words]] = cache(lambda: [Words(*side) for side in sides])

    def with_settings(
        self, decoding: DecodingConfig, run: Runner | None = None, warn: Warn | None = None
    ) -> Self:
        """The same translator with other settings and, if given, another runner of its batches and
        another way to warn."""
        other = copy.copy(self)
        other._decoding = decoding
        other._run = run or self._run
        other._warn = warn or self._warn
        return other

    def warm_up(self, times: int) -> None:
        """Searches for something short `times` times. If as many processes translate, each of them
        has loaded the model afterwards."""
        search = Search([Sentence([self._source.unk])], self._decoding)
        for _ in self._run(iter([search] * times)):
            pass

    def stream(
        self,
        windows: Iterable[list[Line]],
        *,
        finished: Finished = ignore,
        need_alignment: bool = False,
        first: int = 1,
    ) -> Iterator[Translation]:
        """Yields the translation of each line, in order.

        Args:
            windows: lines that are sorted by length together, so that batches have little padding.
                An empty window is a pause: nothing more may come for a while. All translations are
                yielded before the next window is asked for.
            first: the number of the first line, for messages and sampling.
        """
        search = partial(Search, settings=self._decoding, need_attention=need_alignment)
        numbered = _numbered(windows, first)
        prepared = (self._sentences(lines, number) for lines, number in numbered)
        lines = self._computed(prepared, search, finished)
        for number, ((line, cut), parts) in enumerate(lines, first):
            yield self._translation(line, cut, parts, need_alignment)
            self._warn_of_outputs(parts, number)

    def translate(self, lines: Iterable[str]) -> list[str]:
        """The translation of each line. The translation of an empty line is empty."""
        return [found.text for found in self.stream(in_windows(map(Line, lines)))]

    def parts(self, line: str) -> list[LinePart]:
        """The parts of a line that are translated one by one. They can be translated as lines of
        their own, and then joined to what the line's translation is."""
        found: list[LinePart] = []
        tags = line[: self._end_of_tags(line)].strip()
        for segment, missing in self._cut(line):
            if segment.first:  # The rest of a word that was cut belongs to the part before.
                continue
            before = line[found[-1].end : segment.start] if found else ""
            text = line[segment.start : segment.end]
            found.append(
                LinePart(
                    segment.start,
                    segment.end,
                    f"{tags} {text}" if missing else text,
                    self._between(before, segment) if found else "",
                )
            )
        return found

    def scores(
        self, pairs: Iterable[tuple[str, str]], finished: Finished = ignore
    ) -> Iterator[float]:
        """Yields the score of each pair (source, translation), in order. It is the score that the
        search would give the translation: the log-probability (in nats) divided by the length
        penalty. Lines are not cut into segments; the score of a pair that is too long (see
        MAX_AT_ONCE) is nan."""
        for (_, target), log_prob in self._read(pairs, "log_probs", "scored: nan", finished):
            if log_prob is None:
                yield math.nan
            else:
                yield log_prob / length_penalty(len(target) + 1, self._decoding)

    def alignments(
        self, pairs: Iterable[tuple[str, str]], finished: Finished = ignore
    ) -> Iterator[Aligned]:
        """Yields which words of each pair (source, translation) belong together, in order. Lines
        are not cut into segments; a pair that is too long (see MAX_AT_ONCE) gets no links."""
        found = self._read(pairs, "cross_attention", "aligned", finished)
        for (source, target), attention in found:
            yield self._aligned(source, target, attention)

    # ---- From windows of lines to results ----

    def _computed(
        self, windows: Iterator[_Window], work: Callable[[list], Work], finished: Finished
    ) -> Iterator[tuple[Any, list[_Part]]]:
        """Yields each line of the windows, in order, with its computed parts.

        Args:
            work: makes a batch for an engine of the contents of some parts.
        """
        # A window without a batch, a pause or empty lines only, is handed on as one empty batch,
        # which is a pause to the runner. So lines never pile up behind it.
        all_batches = ((window, batch) for window in windows for batch in window.batches or [[]])
        # The runner may read some batches ahead. Their results come in the order of the batches.
        ahead, batches = tee(all_batches)
        works = (work([part.content for part in batch]) if batch else None for _, batch in ahead)
        for results, (window, batch) in zip(self._run(works), batches, strict=True):
            finished(window.take(batch, results or []))
            if window.is_complete:
                yield from zip(window.lines, window.parts, strict=True)

    def _sentences(self, lines: list[Line], first: int) -> _Window:
        """The window of lines to translate, each with its segments."""
        cut_lines: list[tuple[Line, list[_Cut]]] = []
        parts: list[list[_Part]] = []
        for index, line in enumerate(lines):
            number = first + index
            cut = self._cut(line.text)
            if not all(own.segment.begins_sentence for own in cut):
                self._warn(
                    f"line {number}: a sentence of more than {self._longest} subwords was cut, and "
                    "translated in parts",
                    "lines have sentences that were translated in parts",
                )
            ids = [i for own in cut for i in own.segment.ids]
            self._warn_of_unknown(line.text, ids, number)
            prefixes = self._prefixes(line.prefix, len(cut), number)
            cut_lines.append((line, cut))
            parts.append([])
            for place, (own, prefix) in enumerate(zip(cut, prefixes, strict=True)):
                # The random numbers of a segment follow from the line and the place in it.
                sentence = Sentence(
                    own.ids,
                    prefix,
                    (number << 20) + place,
                    self._other_segmentations(line.text, own),
                )
                parts[index].append(_Part(index, sentence, sentence.length))
        return _Window(cut_lines, parts, self._rows_at_once)

    @property
    def _longest(self) -> int:
        """The greatest length of a segment."""
        return self._decoding.max_source_length or self._max_length

    def _cut(self, line: str) -> list[_Cut]:
        """The segments of a line. The tags before it hold for each of them."""
        if is_blank(line):
            return []
        start = self._end_of_tags(line)
        tags = _encode(self._source, line[:start].strip())
        own = segments(
            line,
            partial(_encode, self._source),
            max(1, self._longest - len(tags)),
            self._source_lang,
            split_sentences=bool(self._decoding.split_sentences),
            start=start,
        )
        cut = [_Cut(segment, tags) for segment in own]
        if tags and cut:  # The first segment begins with the tags as they stand in the line.
            begin = len(line) - len(line.lstrip())
            whole = replace(own[0], ids=cut[0].ids, start=begin)
            cut[0] = _Cut(whole, [])
        return cut

    def _end_of_tags(self, text: str) -> int:
        """Where the tags at the start of a text end, which something must follow."""
        match = self._tags.match(text)
        return match.end() if match and text[match.end() :].strip() else 0

    def _prefixes(self, prefix: str, count: int, number: int) -> list[list[int]]:
        """The ids with which the output of each of `count` segments begins. Each sentence of the
        prefix is for a segment of its own, and its tags are for all of them."""
        start = self._end_of_tags(prefix)
        tags, text = prefix[:start].strip(), prefix[start:]
        texts = [text]
        if count > 1:
            starts = [place[0] for place in sentences(text, self._target_lang)][:count]
            texts = [text[a:b].strip() for a, b in pairwise([*starts, len(text)])]
        texts += [""] * (count - len(texts))
        joined = (f"{tags} {own}" if tags else own for own in texts[:count])
        return [self._prefix(own, number) if own else [] for own in joined]

    def _prefix(self, text: str, number: int) -> list[int]:
        """The ids of the prefix of a line, without the spaces at its end, because the model writes
        them before its next word. Warns of characters that the output can't hold."""
        text = _characters(text).rstrip(" ")
        if isinstance(self._target, WordVocabulary):
            ids = self._target.encode(text)
            lost = [
                token for token in tokens(text) if self._target.unk in self._target.encode(token)
            ]
        else:
            composed = unicodedata.normalize("NFC", text)
            for form in (text, composed, composed.rstrip()):
                ids = self._target.encode(form)
                written = self._target.decode(ids)
                if written == form:
                    return ids
            lost = [f"{one} (U+{ord(one):04X})" for one in form if one not in written]
        if lost:
            self._warn(
                f"line {number}: the model can't write a part of the prefix: "
                f"{', '.join(dict.fromkeys(lost))}",
                "prefixes have parts that the model can't write",
            )
        return ids

    def _other_segmentations(self, line: str, cut: _Cut) -> list[list[int]]:
        """The sampled segmentations of a segment, which depend only on its text and the seed."""
        segment = cut.segment
        count = self._decoding.segmentations - 1
        if not count:
            return []
        text = _characters(line[segment.start : segment.end])
        # Half of a word that was cut can't be sampled, because its subwords are not those of a
        # text. It gets its own subwords again.
        if self._source.encode(text) != segment.ids:
            return [cut.ids] * count
        rate = self._decoding.segmentation_rate or self._sampling
        if rate is None:
            raise ValueError("sampled segmentations need a rate")
        seed = self._decoding.seed, zlib.crc32(text.encode())
        drawn = seeded(seed, lambda: [self._source.sample(text, rate) for _ in range(count)])
        # A sampled segmentation may have as many subwords as the text has characters.
        most = max(MAX_AT_ONCE, self._max_length)
        return [cut.tags + (ids if len(ids) <= most else segment.ids) for ids in drawn]

    def _read(
        self, pairs: Iterable[tuple[str, str]], method: str, action: str, finished: Finished
    ) -> Iterator[tuple[Pair, Any]]:
        """Yields the ids of each pair (source, translation), in order, with what the engine's
        method gives for it, or with None if the pair is too long.

        Args:
            action: what is not done with a pair that is too long, for the message.
        """
        most = max(MAX_AT_ONCE, self._max_length)

        def windows() -> Iterator[_Window]:
            for window, first in _numbered(in_windows(pairs), 1):
                encoded = [
                    (_encode(self._source, source), _encode(self._target, target))
                    for source, target in window
                ]
                parts: list[list[_Part]] = [[] for _ in encoded]
                for index, pair in enumerate(encoded):
                    longest = max(map(len, pair))
                    if longest <= most:
                        parts[index].append(_Part(index, pair, longest + 1))
                    else:
                        self._warn(
                            f"line {first + index}: {longest} subwords are not {action}",
                            f"lines are not {action}",
                        )
                yield _Window(encoded, parts, self._rows_at_once)

        for pair, parts in self._computed(windows(), partial(_of_pairs, method), finished):
            yield pair, parts[0].result if parts else None

    def _rows_at_once(self, length: int) -> int:
        # The only place that reads batch_tokens, except for the queue of the service.
        tokens = self._decoding.batch_tokens
        if tokens is None:
            return self._at_once(self._decoding, length)
        return sentences_in(tokens, self._decoding, length)

    # ---- From results to text ----

    def _translation(
        self, line: Line, cut: list[_Cut], parts: list[_Part], need_alignment: bool
    ) -> Translation:
        own = [part.segment for part in cut]
        pieces = [piece for segment in own for piece in self._source.pieces(segment.ids)]
        count = max((len(part.result) for part in parts), default=1)
        outputs = [self._output(line, cut, parts, rank, need_alignment) for rank in range(count)]
        if not self._decoding.sampling:  # equal samples tell how probable a text is
            outputs = _different(outputs)
        words = self._source_words(line.text, own) if need_alignment else None
        places = [(segment.start, segment.end) for segment in own]
        return Translation(line.text, pieces, outputs, words, places)

    def _source_words(self, line: str, cut: list[Segment]) -> list[Place]:
        """The place in the line of each word of its segments."""
        words: list[Place] = []
        for segment in cut:
            places = self._source.places(_characters(line[segment.start : segment.end]))
            places = places[segment.first : segment.first + len(segment.ids)]
            words += _moved(self._sides()[0].places(segment.ids, places), segment.start)
        return words

    def _output(
        self, line: Line, cut: list[_Cut], parts: list[_Part], rank: int, need_alignment: bool
    ) -> Output:
        """Joins the rank-th best hypothesis of each part, or its last one if it has fewer."""
        text = ""
        pieces: list[str] = []
        links: list[Link] = []
        words: list[Place] = []
        places: list[Place] = []
        log_prob, length = 0.0, 0
        source_count = 0  # the source words of the parts before
        before = None
        for own, part in zip(cut, parts, strict=True):
            segment = own.segment
            if before is not None:
                text += self._between(line.text[before.end : segment.start], segment)
            before, start = segment, len(text)
            hypothesis = part.result[min(rank, len(part.result) - 1)]
            text += self._target.decode(hypothesis.ids)
            places.append((start, len(text)))
            pieces += self._target.pieces(hypothesis.ids)
            log_prob += hypothesis.log_prob
            length += len(hypothesis.ids) + 1
            if need_alignment:
                attention = hypothesis.attention
                if attention is not None:
                    attention = attention[:, len(own.tags) :]
                found = self._aligned(segment.ids, hypothesis.ids, attention)
                links += ((source_count + i, len(words) + j) for i, j in found.links)
                source_count += found.source_words
                of_subwords = self._target.decoded_places(hypothesis.ids)
                words += _moved(self._sides()[1].places(hypothesis.ids, of_subwords), start)
        return Output(
            # A vocabulary may hold characters that would end the line.
            text=re.sub(r"[\r\n]", " ", text),
            score=log_prob / length_penalty(max(length, 1), self._decoding),
            log_prob=log_prob,
            pieces=pieces,
            alignment=links if need_alignment else None,
            words=words if need_alignment else None,
            parts=places,
        )

    def _between(self, spaces: str, segment: Segment) -> str:
        """What stands before the translation of a segment that is not the first.

        Args:
            spaces: what stands before the segment in the line.
        """
        if not segment.begins_sentence:
            return " " if has_spaces(self._target_lang) else ""
        if not joins_sentences_with_space(self._target_lang):
            return ""
        # Where the source language has spaces between sentences, their number stays, even none.
        count = len(spaces) or not joins_sentences_with_space(self._source_lang)
        return " " * count

    def _aligned(
        self, source: list[int], target: list[int], attention: np.ndarray | None
    ) -> Aligned:
        """The word alignment that follows from `Hypothesis.attention`; without it, no links."""
        # The number of the word that each subword belongs to, for both sides.
        source_words, target_words = (
            side.numbers(np.array(ids, np.int64))
            for side, ids in zip(self._sides(), (source, target), strict=True)
        )
        links = []
        if attention is not None:
            links = word_alignment(attention, source_words, target_words)
        return Aligned(links, word_count(source_words), word_count(target_words))

    def _warn_of_unknown(self, text: str, ids: list[int], line: int) -> None:
        """Warns of a line that the model can't read: more than a fifth of it is unknown."""
        unknown, count = ids.count(self._source.unk), len(ids) - ids.count(self._source.space)
        if unknown > count / 5:
            if isinstance(self._source, WordVocabulary):
                name, end = "tokens", "; this model reads tokenised text with its BPE applied"
            else:
                examples = examples_of("".join(self._source.unknown(_characters(text))))
                name, end = "subwords", f", such as {', '.join(examples)}"
            self._warn(
                f"line {line}: {unknown} of {count} {name} are not in the vocabulary{end}",
                f"lines have {name} that are not in the vocabulary",
            )

    def _warn_of_outputs(self, parts: list[_Part], line: int) -> None:
        """Warns if an output is as long as it may be, because it may be cut there, or if there is
        none."""
        for part in parts:
            if not math.isfinite(part.result[0].log_prob):
                self._warn(
                    f"line {line}: what the model computes is NaN or infinite, so there is no "
                    "translation. Use another checkpoint",
                    "lines have no translation because the model computes NaN or infinity",
                )
            most = length_limits(len(part.content.source), self._decoding)[1]
            if len(part.result[0].ids) >= max(most, 1):
                self._warn(
                    f"line {line}: the translation has reached the limit of {most} subwords, and "
                    "may be cut there. decoding.max_length_ratio and max_length_extra raise it",
                    "translations have reached their greatest length",
                )
                return


class _Cut(NamedTuple):
    """A segment of a line, and the ids of tags that are put before it."""

    segment: Segment
    tags: list[int]

    @property
    def ids(self) -> list[int]:
        return self.tags + self.segment.ids


@dataclass
class _Part:
    """What is computed as a whole: a line, a segment of a line, or a pair of lines.

    Attributes:
        line: the index of the line in its window.
        content: a Sentence, or a Pair.
        length: in subwords with eos, for the size of batches.
        result: the hypotheses of a Sentence, or what the engine gives for a Pair.
    """

    line: int
    content: Any
    length: int
    result: Any = None


class _Window:
    """Lines that are computed together, in batches of parts of similar length.

    Args:
        parts: the parts of each line: one, several or none.
        rows_at_once: the most parts that a batch may have if the longest has this length. A batch
            has at least one.
    """

    def __init__(
        self, lines: list, parts: list[list[_Part]], rows_at_once: Callable[[int], int]
    ) -> None:
        self.lines = lines
        self.parts = parts
        self._parts_left = [len(own) for own in parts]
        self._complete = 0
        # The longest come first, so that memory runs out at once or not at all.
        self.batches: list[list[_Part]] = []
        order = sorted(chain.from_iterable(parts), key=lambda part: -part.length)
        start = 0
        while start < len(order):
            rows = max(1, rows_at_once(order[start].length))
            self.batches.append(order[start : start + rows])
            start += rows

    @property
    def is_complete(self) -> bool:
        return self._complete == len(self.lines)

    def take(self, batch: list[_Part], results: list) -> int:
        """Stores the results of a batch. Returns how many more lines are complete now."""
        for part, result in zip(batch, results, strict=True):
            part.result = result
            self._parts_left[part.line] -= 1
        before, self._complete = self._complete, self._parts_left.count(0)
        return self._complete - before


def _numbered(windows: Iterable[list[Item]], first: int) -> Iterator[tuple[list[Item], int]]:
    """The windows, each with the number of its first line."""
    for window in windows:
        yield window, first
        first += len(window)


def _different(outputs: list[Output]) -> list[Output]:
    """The outputs in their order, but each text only once, with the best of its scores. The others
    are the same text in other subwords."""
    different: dict[str, Output] = {}
    for output in outputs:
        known = different.setdefault(output.text, output)
        if output.score > known.score:
            different[output.text] = output
    return list(different.values())


def _moved(places: list[Place], distance: int) -> Iterator[Place]:
    return ((distance + start, distance + end) for start, end in places)


def _encode(vocabulary: Vocabulary, text: str) -> list[int]:
    return vocabulary.encode(_characters(text))


def _characters(text: str) -> str:
    """The text, of equal length. Half a surrogate pair is not a character, but text in Python may
    hold one."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _one_by_one(engine: Engine) -> Runner:
    lock = threading.Lock()

    def run(batches: Iterator[Work | None]) -> Iterator[Result | None]:
        for batch in batches:
            result = None
            if batch is not None:
                with lock:
                    result = batch(engine)
            yield result

    return run


def word_alignment(
    attention: np.ndarray, source_words: np.ndarray, target_words: np.ndarray
) -> list[Link]:
    """Pairs (source word, target word) in rising order. Each target word is linked to the source
    word with the greatest attention, summed over the subwords of both words.

    Args:
        attention: (target subwords, source subwords).
        source_words, target_words: the number of each subword's word, as from `Words.numbers`.
    """
    if not word_count(source_words):
        return []
    totals = np.zeros((word_count(target_words), word_count(source_words)))
    rows, columns = target_words != NONE, source_words != NONE
    places = np.ix_(target_words[rows], source_words[columns])
    np.add.at(totals, places, attention[rows][:, columns])
    return sorted((int(best), target) for target, best in enumerate(totals.argmax(axis=1)))
