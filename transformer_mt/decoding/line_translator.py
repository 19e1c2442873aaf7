"""Text in, text out: one line for each line, whatever the line holds."""

from __future__ import annotations

import copy
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import count, tee
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.schema import Config
from transformer_mt.data.alignments import Words
from transformer_mt.data.subword import Subwords
from transformer_mt.data.terms import Term, Terms
from transformer_mt.decoding.checks import Warning, warnings_of
from transformer_mt.decoding.engine import (
    AtOnce,
    Engine,
    Hypothesis,
    Limits,
    Search,
    Sentence,
    default_at_once,
    length_limits,
    length_penalty,
    way_of_terms,
)
from transformer_mt.decoding.given_terms import GivenTerms
from transformer_mt.decoding.line_reader import (
    LineReader,
    Reading,
    Warn,
    characters,
)
from transformer_mt.decoding.line_writer import LineWriter
from transformer_mt.decoding.lines import in_windows
from transformer_mt.decoding.output import Aligned, Line, LinePart, Translation
from transformer_mt.decoding.protection import SymbolSearch
from transformer_mt.utils.console import warn

if TYPE_CHECKING:
    from typing_extensions import Self


Result = TypeVar("Result")
# The ids of a source and of its translation, without bos and eos.
Pair = tuple[list[int], list[int]]
# Is called with the number of lines that have just been computed.
Finished = Callable[[int], object]
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
        config: what the lines are read and translated with. A sampled segmentation has the rate
            `subword.sampling` if `decoding.segmentation_rate` is null.
        at_once: decides how large batches are.
        warn: is called with warnings about lines, as `console.warn`.
        limits: what the engine can't do.
    """

    def __init__(
        self,
        engine: Engine | Runner,
        subwords: Subwords,
        config: Config,
        at_once: AtOnce = default_at_once,
        warn: Warn = warn,
        limits: Limits | None = None,
    ) -> None:
        self._run = engine if callable(engine) else partial(_one_by_one, engine, threading.Lock())
        self._source, self._target = subwords.source, subwords.target
        self._reader = LineReader(subwords, config, warn, limits or {})
        self._at_once = at_once
        sides = (self._source, config.data.source_lang), (self._target, config.data.target_lang)
        # They are made only if they are needed, because that looks at the whole vocabularies, and
        # only once for all translators that `with_settings` makes.
        self._writer = LineWriter(subwords, config, cache(lambda: [Words(*side) for side in sides]))

    @property
    def _decoding(self) -> DecodingConfig:
        return self._reader.decoding

    def with_settings(
        self,
        decoding: DecodingConfig,
        run: Runner | None = None,
        warn: Warn | None = None,
        terms: Iterable[Term] | None = None,
    ) -> Self:
        """The same translator with other settings and, if given, another runner of its batches,
        another way to warn, and terms whose translations are given.

        Raises:
            UsageError: terms are given, and the engine can't follow them.
        """
        other = copy.copy(self)
        config = self._reader.config.model_copy(update={"decoding": decoding})
        changes: dict[str, Any] = {"config": config, "warn": warn or self._reader.warn}
        if terms is not None:
            is_trained = config.data.annotate_terms > 0
            way = way_of_terms(decoding, self._reader.limits, is_trained)
            found = Terms(terms, config.data.source_lang)
            subwords, language = self._reader.subwords, config.data.target_lang
            changes["terms"] = GivenTerms(found, way, subwords, language)
        other._reader = replace(self._reader, **changes)
        other._writer = replace(self._writer, config=config)
        other._run = run or self._run
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
        search = self._search(need_alignment)
        numbers = count(first)
        prepared = ([self._prepared(line, next(numbers)) for line in lines] for lines in windows)
        lines = self._computed(prepared, search, finished)
        for number, ((line, reading), parts) in enumerate(lines, first):
            found = [part.result for part in parts]
            check = self.check_of(line.text)
            yield self._writer.translation(line.text, reading, found, need_alignment, check)
            self._warn_of_outputs(parts, number)

    def _search(self, need_alignment: bool) -> Callable[[list[Sentence]], Work]:
        settings: dict[str, Any] = {"settings": self._decoding, "need_attention": need_alignment}
        if self._reader.finder is None or not self._reader.has_symbols:
            return partial(Search, **settings)
        return partial(SymbolSearch, **settings, can_align="alignment" not in self._reader.limits)

    def translate(self, lines: Iterable[str]) -> list[str]:
        """The translation of each line. The translation of an empty line is empty."""
        return [found.text for found in self.stream(in_windows(map(Line, lines)))]

    def parts(self, line: str) -> list[LinePart]:
        """The parts of a line that are translated one by one. They can be translated as lines of
        their own, and then joined to what the line's translation is."""
        if self._reader.finder is not None and self._reader.finder.find(line):
            return [LinePart(0, len(line), line, "")]  # What is between the parts is protected too.
        tags = line[: self._reader.end_of_tags(line)].strip()
        found = []
        for segment in self._reader.segments(line):
            if segment.first:  # The rest of a word that was cut belongs to the part before.
                continue
            text = line[segment.start : segment.end]
            text = f"{tags} {text}" if tags and segment.tags else text
            found.append(LinePart(segment.start, segment.end, text, segment.before))
        return found

    def check_of(self, line: str) -> Callable[[str], list[Warning]]:
        """Gives the warnings about texts as translations of a line; see `checks.warnings_of`."""
        data, given = self._reader.config.data, self._reader.terms
        return partial(
            warnings_of,
            line[self._reader.end_of_tags(line) :],
            finder=self._reader.finder,
            source_lang=data.source_lang,
            target_lang=data.target_lang,
            terms=None if given is None else given.terms,
        )

    def scores(
        self, pairs: Iterable[tuple[str, str]], finished: Finished = ignore
    ) -> Iterator[float]:
        """Yields the score of each pair (source, translation), in order. It is the score that the
        search would give the translation: the log-probability (in nats) divided by the length
        penalty. Lines are not cut into segments; the score of a pair that is too long (see
        MAX_AT_ONCE) is nan."""
        for (_, target), log_prob, _ in self._read(pairs, "log_probs", "scored: nan", finished):
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
        for (source, target), attention, tags in found:
            if attention is not None:
                attention = attention[:, tags:]
            yield self._writer.aligned(source[tags:], target, attention)

    # ---- From windows of lines to results ----

    def _computed(
        self,
        windows: Iterator[list[tuple[Any, list[_Part]]]],
        work: Callable[[list], Work],
        finished: Finished,
    ) -> Iterator[tuple[Any, list[_Part]]]:
        """Yields the lines of the windows, in order, when their parts have results. A line is
        whatever stands beside its parts.

        Args:
            work: makes a batch for an engine of the contents of some parts.
        """
        all_batches = ((lines, *own) for lines in windows for own in self._batches(lines))
        # The runner may read some batches ahead. Their results come in the order of the batches.
        ahead, batches = tee(all_batches)
        works = (work([part.content for part in own]) if own else None for _, own, _ in ahead)
        complete = 0  # lines of the window
        for results, (lines, batch, more) in zip(self._run(works), batches, strict=True):
            for part, result in zip(batch, results or [], strict=True):
                part.result = result
            finished(more)
            complete += more
            if complete == len(lines):
                yield from lines
                complete = 0

    def _batches(self, lines: list[tuple[Any, list[_Part]]]) -> Iterator[tuple[list[_Part], int]]:
        """Batches of parts of similar length, each with the number of lines that it completes. A
        window without parts, a pause or empty lines only, is one empty batch, which is a pause to
        the runner. So lines never pile up behind it."""
        parts = [
            (part, line)
            for line, (_, own) in enumerate(lines)
            for part in own
            if part.result is None
        ]
        # The longest come first, so that memory runs out at once or not at all.
        parts.sort(key=lambda item: -item[0].length)
        left = Counter(line for _, line in parts)  # the parts of each line
        complete, start = len(lines) - len(left), 0
        while start < len(parts):
            rows = max(1, self._at_once(self._decoding, parts[start][0].length))
            batch = parts[start : start + rows]
            for _, line in batch:
                left[line] -= 1
                complete += not left[line]
            yield [part for part, _ in batch], complete
            complete, start = 0, start + rows
        if not parts:
            yield [], complete

    def _prepared(self, line: Line, number: int) -> tuple[tuple[Line, Reading], list[_Part]]:
        """A line to translate and what is read of it. Its segments are its parts."""
        reading = self._reader.read(line, number)
        parts = []
        for segment, sentence in zip(reading.segments, reading.sentences, strict=True):
            result = None
            if segment.is_copied:
                text = self._source.decode(segment.ids)
                result = [Hypothesis(self._target.encode(text), 0.0, 0.0)]
            parts.append(_Part(sentence, sentence.length, result))
        return (line, reading), parts

    def _read(
        self, pairs: Iterable[tuple[str, str]], method: str, action: str, finished: Finished
    ) -> Iterator[tuple[Pair, Any, int]]:
        """Yields the ids of each pair (source, translation), in order, with what the engine's
        method gives for it, or with None if the pair is too long, and with the number of ids at the
        start of the source that are not of its text, but of `decoding.tag`.

        Args:
            action: what is not done with a pair that is too long, for the message.
        """
        numbers = count(1)

        def prepared(source: str, target: str) -> tuple[tuple[Pair, int], list[_Part]]:
            number, tag = next(numbers), self._reader.put_before(source)
            source_ids = self._source.encode(characters(source))
            pair = tag + source_ids, self._target.encode(characters(target))
            longest = max(map(len, pair))
            if longest <= self._reader.most_at_once:
                return (pair, len(tag)), [_Part(pair, longest + 1)]
            self._reader.warn(
                f"line {number}: {longest} subwords are not {action}", f"lines are not {action}"
            )
            return (pair, len(tag)), []

        windows = ([prepared(*pair) for pair in window] for window in in_windows(pairs))
        work = partial(_of_pairs, method)
        for (pair, tags), parts in self._computed(windows, work, finished):
            yield pair, parts[0].result if parts else None, tags

    def _warn_of_outputs(self, parts: list[_Part], line: int) -> None:
        """Warns if an output is as long as it may be, because it may be cut there, or if there is
        none."""
        for part in parts:
            if not math.isfinite(part.result[0].log_prob):
                self._reader.warn(
                    f"line {line}: what the model computes is NaN or infinite, so there is no "
                    "translation. Use another checkpoint",
                    "lines have no translation because the model computes NaN or infinity",
                )
            most = length_limits(len(part.content.source), self._decoding)[1]
            if len(part.result[0].ids) >= max(most, 1):
                self._reader.warn(
                    f"line {line}: the translation has reached the limit of {most} subwords, and "
                    "may be cut there. decoding.max_length_ratio and max_length_extra raise it",
                    "translations have reached their greatest length",
                )
                return


@dataclass
class _Part:
    """What is computed as a whole: a line, a segment of a line, or a pair of lines.

    Attributes:
        content: a Sentence, or a Pair.
        length: in subwords with eos, for the size of batches.
        result: the hypotheses of a Sentence, or what the engine gives for a Pair. What has one from
            the start is not computed.
    """

    content: Any
    length: int
    result: Any = None


def _one_by_one(
    engine: Engine, lock: threading.Lock, batches: Iterator[Work | None]
) -> Iterator[Result | None]:
    """A Runner, with its first two arguments: several threads compute one at a time."""
    for batch in batches:
        result = None
        if batch is not None:
            with lock:
                result = batch(engine)
        yield result
