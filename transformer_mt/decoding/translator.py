"""Text in, text out: one line for one line, whatever the line holds."""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from transformer_mt.assembly import backends as engines
from transformer_mt.config import file as config_file
from transformer_mt.config.schema import Config, DecodingConfig
from transformer_mt.data.pharaoh import Link
from transformer_mt.data.subword import Subwords, Vocabulary, WordVocabulary
from transformer_mt.data.words import Words, has_spaces, word_count
from transformer_mt.decoding.alignment import word_alignment
from transformer_mt.decoding.engine import Engine, Hypothesis, Sentence, length_penalty
from transformer_mt.decoding.segments import parts
from transformer_mt.decoding.stream import in_windows
from transformer_mt.mechanisms.mask_predict import search as mask_predict
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.runtime.console import warn

# Subwords of a line that is read as a whole, unless the model was trained on longer ones: attention
# takes memory by the square of them, and no export has fewer positions.
MAX_AT_ONCE = 1_000


class Line(NamedTuple):
    """A line to translate; its translation begins with `prefix`."""

    text: str
    prefix: str = ""


@dataclass(frozen=True)
class Output:
    """A translation of a line: its text; its score, the log-probability (in nats) divided by the
    length penalty; its subwords; and, if asked for, pairs (source word, target word) from 0."""

    text: str
    score: float
    log_prob: float
    pieces: list[str]
    alignment: list[Link] | None = None


@dataclass(frozen=True)
class Translation:
    """What the translator gives for a line: the outputs, best first, all different but for those of
    sampling. None for an empty line but one empty output."""

    source: str
    source_pieces: list[str]
    outputs: list[Output]

    @property
    def text(self) -> str:
        return self.outputs[0].text


class Aligned(NamedTuple):
    """The links of two lines, pairs (source word, target word) from 0 in rising order, and how many
    words they have."""

    links: list[Link]
    source_words: int
    target_words: int


Item = TypeVar("Item")
Result = TypeVar("Result")


class Work(Protocol[Result]):
    """A batch that some engine, perhaps in another process, is to run."""

    def run(self, engine: Engine) -> Result: ...


# Runs batches and yields their results in order. None among the batches says that nothing will come
# for a while: what is not put out yet is, and then None.
Runner = Callable[[Iterator[Work | None]], Iterator[Result | None]]


class _Search(NamedTuple):
    sentences: list[Sentence]
    settings: DecodingConfig
    need_attention: bool

    def run(self, engine: Engine) -> list[list[Hypothesis]]:
        return engine.search(*self)


class _Scoring(NamedTuple):
    sources: list[list[int]]
    targets: list[list[int]]

    def run(self, engine: Engine) -> list[float]:
        return engine.log_probs(*self)


class _Alignment(NamedTuple):
    sources: list[list[int]]
    targets: list[list[int]]

    def run(self, engine: Engine) -> list[np.ndarray]:
        return engine.cross_attention(*self)


class Translator:
    """Translates lines with one engine. Safe for use from several threads, one at a time of which
    computes."""

    def __init__(
        self,
        engine: Engine | Runner,
        subwords: Subwords,
        decoding: DecodingConfig,
        max_length: int,
        target_lang: str,
        source_lang: str = "",
    ) -> None:
        """
        Args:
            engine: or what runs batches on several (see `pool`).
            max_length: of the source, in subwords; longer lines are translated in parts.
            target_lang, source_lang: such as de, zh-CN; they tell whether there are spaces.
        """
        self._run = engine if callable(engine) else _one_by_one(engine)
        self._source = subwords.source
        self._target = subwords.target
        self._decoding = decoding
        self._max_length = max_length
        self._languages = source_lang, target_lang
        # Between the parts of an over-long line.
        self._glue = " " if has_spaces(target_lang) else ""

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        checkpoint: str | None = None,
        *,
        engine: str | None = None,
        ensemble: tuple[str, ...] = (),
        threads: int = 1,
        device: str | None = None,
        **decoding,
    ) -> Translator:
        """The translator of a model directory, or of what `export` has made of one.

        Args:
            checkpoint, engine, ensemble, threads, device: as in `engines.find`.
            decoding: settings in place of those of the model's config, such as beam_size=1.

        Raises:
            UserError: something is missing or damaged, or a setting is wrong.
        """
        spec = engines.find(model_dir, engine, checkpoint, ensemble, threads, device)
        # What it can't do is refused before the seconds that loading takes.
        _settings(ModelDirectory(spec.folder).load_config(), decoding)
        return cls.of(spec, spec.load(), **decoding)

    @classmethod
    def of(cls, spec: engines.EngineSpec, engine: Engine | Runner, **decoding) -> Translator:
        """The translator of an engine that is loaded, or of several that a runner has."""
        directory = ModelDirectory(spec.folder)
        config = directory.load_config()
        return cls(
            engine,
            directory.load_subwords(),
            _settings(config, decoding),
            config.data.max_length,
            config.data.target_lang,
            config.data.source_lang,
        )

    def translate(
        self, lines: Iterable[str], finished: Callable[[int], object] = lambda count: None
    ) -> list[str]:
        """The translation of each line; an empty line gives an empty line.

        Args:
            finished: called with the number of lines that have just been translated.
        """
        windows = in_windows(map(Line, lines))
        return [translation.text for translation in self.stream(windows, finished=finished)]

    def warm_up(self, times: int) -> None:
        """Searches for something short so often: where processes translate, and there are as many,
        each has then loaded the model."""
        search = _Search([Sentence([self._source.unk])], self._decoding, False)
        for _ in self._run(iter([search] * times)):
            pass

    def stream(
        self,
        windows: Iterable[list[Line]],
        *,
        finished: Callable[[int], object] = lambda count: None,
        need_alignment: bool = False,
        first: int = 1,
    ) -> Iterator[Translation]:
        """Yields the translation of each line, in order.

        Args:
            windows: lines that are sorted by length together, for batches without much padding. An
                empty window says that nothing will come for a while: all is put out before the
                next is asked for.
            first: the number of the first line, for messages and sampling.
        """
        pending: deque[_Window] = deque()

        def batches() -> Iterator[_Search | None]:
            number = first
            for lines in windows:
                if not lines:
                    yield None
                    continue
                window = self._prepare(lines, number)
                number += len(lines)
                pending.append(window)
                for batch in window.batches:
                    sentences = [window.parts[i].sentence for i in batch]
                    yield _Search(sentences, self._decoding, need_alignment)
                if not window.batches:
                    yield None  # so that empty lines don't pile up

        def complete() -> Iterator[Translation]:
            while pending and pending[0].is_complete:
                finished(pending[0].newly_complete())  # of a window of empty lines
                yield from self._assembled(pending.popleft(), need_alignment)

        for hypotheses in self._run(batches()):
            if hypotheses is not None:
                yield from complete()
                pending[0].take(hypotheses)
                finished(pending[0].newly_complete())
            yield from complete()
        yield from complete()

    def scores(
        self,
        pairs: Iterable[tuple[str, str]],
        finished: Callable[[int], object] = lambda count: None,
    ) -> Iterator[float]:
        """Yields the score that the search would give a translation, for each pair (source, its
        translation), in order: its log-probability (in nats) divided by the length penalty. Lines
        are not scored in parts; nan is what a pair gets that is too long (MAX_AT_ONCE)."""
        for (_, target), log_prob in self._read(pairs, _Scoring, "scored: nan", finished):
            if log_prob is None:
                yield math.nan
            else:
                yield log_prob / length_penalty(len(target) + 1, self._decoding)

    def alignments(
        self,
        pairs: Iterable[tuple[str, str]],
        finished: Callable[[int], object] = lambda count: None,
    ) -> Iterator[Aligned]:
        """Yields which words belong together, for each pair (source, its translation), in order.
        Lines are not aligned in parts; a pair that is too long (MAX_AT_ONCE) gets no links."""
        for (source, target), attention in self._read(pairs, _Alignment, "aligned", finished):
            source_words, target_words = self._words(source, target)
            links = []
            if attention is not None:
                links = word_alignment(attention, source_words, target_words)
            yield Aligned(links, word_count(source_words), word_count(target_words))

    def _read(
        self,
        pairs: Iterable[tuple[str, str]],
        work: Callable[[list[list[int]], list[list[int]]], Work[list[Result]]],
        done: str,
        finished: Callable[[int], object],
    ) -> Iterator[tuple[tuple[list[int], list[int]], Result | None]]:
        """Yields the ids of each pair (source, its translation), in order, with what `work` makes
        of them in a batch; None is what a pair gets that is too long.

        Args:
            done: what such a pair is not, for the message.
        """
        pending: deque[tuple[list[tuple[list[int], list[int]]], list[list[int]]]] = deque()
        most = max(MAX_AT_ONCE, self._max_length)

        def batches() -> Iterator[Work[list[Result]]]:
            number = 1
            for window in in_windows(pairs):
                encoded = [
                    (_encode(self._source, source), _encode(self._target, target))
                    for source, target in window
                ]
                longest = [max(map(len, pair)) for pair in encoded]
                fitting = [i for i, length in enumerate(longest) if length <= most]
                for index in sorted(set(range(len(window))) - set(fitting)):
                    warn(f"line {number + index}: {longest[index]} subwords are not {done}")
                number += len(window)
                order = sorted(fitting, key=lambda i: -longest[i])
                cut = _cut([longest[i] + 1 for i in order], self._decoding.batch_tokens)
                pending.append((encoded, [order[part] for part in cut]))
                for part in cut:
                    chosen = [encoded[i] for i in order[part]]
                    yield work([s for s, _ in chosen], [t for _, t in chosen])

        found: dict[int, Result] = {}

        def complete() -> Iterator[tuple[tuple[list[int], list[int]], Result | None]]:
            while pending and not pending[0][1]:
                encoded, _ = pending.popleft()
                yield from ((pair, found.get(index)) for index, pair in enumerate(encoded))
                found.clear()

        for results in self._run(batches()):
            yield from complete()
            batch = pending[0][1].pop(0)
            found.update(zip(batch, results, strict=True))
            finished(len(batch))
            yield from complete()
        yield from complete()

    def _prepare(self, lines: list[Line], first: int) -> _Window:
        window = _Window(lines)
        for index, line in enumerate(lines):
            own = parts(line.text, lambda text: _encode(self._source, text), self._max_length)
            if len(own) > 1:
                warn(
                    f"line {first + index}: {sum(map(len, own))} subwords, translated in "
                    f"{len(own)} parts of at most {self._max_length}"
                )
            self._warn_of_unknown([i for ids in own for i in ids], first + index)
            prefix = _encode(self._target, line.prefix) if line.prefix else []
            for number, ids in enumerate(own):
                # Draws of a part follow from the line and its place in it.
                sentence = Sentence(ids, [] if number else prefix, ((first + index) << 20) + number)
                window.parts.append(_Part(index, sentence))
        window.cut(self._decoding.batch_tokens)
        return window

    def _assembled(self, window: _Window, need_alignment: bool) -> Iterator[Translation]:
        of_line: list[list[_Part]] = [[] for _ in window.lines]
        for part in window.parts:
            of_line[part.line].append(part)
        for line, own in zip(window.lines, of_line, strict=True):
            pieces = [piece for part in own for piece in self._source.pieces(part.sentence.source)]
            count = max((len(part.hypotheses) for part in own), default=1)
            outputs = [self._output(own, rank, need_alignment) for rank in range(count)]
            if not self._decoding.sampling:  # draws that are alike tell how probable a text is
                outputs = _different(outputs)
            yield Translation(line.text, pieces, outputs)

    def _output(self, own: list[_Part], rank: int, need_alignment: bool) -> Output:
        """The rank-th best of each part, or its last if it has fewer, as one."""
        texts: list[str] = []
        pieces: list[str] = []
        pairs: list[Link] = []
        log_prob, length = 0.0, 0
        source_count = target_count = 0  # words of the parts before
        for part in own:
            hypothesis = part.hypotheses[min(rank, len(part.hypotheses) - 1)]
            text = self._target.decode(hypothesis.ids)
            # A vocabulary may hold characters that would end the line.
            texts.append(re.sub(r"[\r\n]", " ", text))
            own_pieces = self._target.pieces(hypothesis.ids)
            pieces += own_pieces
            log_prob += hypothesis.log_prob
            length += len(hypothesis.ids) + 1
            if hypothesis.attention is not None:
                source_words, target_words = self._words(part.sentence.source, hypothesis.ids)
                pairs += (
                    (source_count + source, target_count + target)
                    for source, target in word_alignment(
                        hypothesis.attention, source_words, target_words
                    )
                )
                source_count += word_count(source_words)
                target_count += word_count(target_words)
        return Output(
            text=self._glue.join(texts),
            score=log_prob / length_penalty(max(length, 1), self._decoding),
            log_prob=log_prob,
            pieces=pieces,
            alignment=pairs if need_alignment else None,
        )

    def _words(self, source: list[int], target: list[int]) -> list[np.ndarray]:
        """The numbers of the words of both sides."""
        return [
            side.numbers(np.array(ids, np.int64))
            for side, ids in zip(self._sides, (source, target), strict=True)
        ]

    @cached_property
    def _sides(self) -> list[Words]:
        # Made where they are asked for: they look at all subwords that there are.
        vocabularies = self._source, self._target
        return [Words(*side) for side in zip(vocabularies, self._languages, strict=True)]

    def _warn_of_unknown(self, ids: list[int], line: int) -> None:
        """Text without its BPE given to a model of BPE'd text is mostly unknown words."""
        if isinstance(self._source, WordVocabulary):
            unknown = ids.count(self._source.unk)
            if unknown > len(ids) // 2:
                warn(
                    f"line {line}: {unknown} of {len(ids)} tokens are not in the vocabulary; this "
                    "model reads tokenised text with its BPE applied"
                )


def _settings(config: Config, changes: dict[str, Any]) -> DecodingConfig:
    """Those of a model, with changes.

    Raises:
        UsageError: a setting is wrong, or this model can't do what it asks for.
    """
    settings = config_file.with_changes(config.decoding, changes)
    if config.model.non_autoregressive is not None:
        mask_predict.require_possible(settings)
    return settings


def _different(outputs: list[Output]) -> list[Output]:
    """The outputs in their order, but each text once, with the best score that it has; another one
    has the same text in other subwords."""
    different: dict[str, Output] = {}
    for output in outputs:
        known = different.setdefault(output.text, output)
        if output.score > known.score:
            different[output.text] = output
    return list(different.values())


def _encode(vocabulary: Vocabulary, text: str) -> list[int]:
    # Half a surrogate pair is no character, but Python's text may hold one.
    return vocabulary.encode(text.encode("utf-8", "replace").decode("utf-8"))


@dataclass
class _Part:
    """A line, or a part of one that is too long."""

    line: int
    sentence: Sentence
    hypotheses: list[Hypothesis] = field(default_factory=list)


class _Window:
    """Lines that are translated together."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.parts: list[_Part] = []
        self.batches: list[list[int]] = []  # places in `parts`
        self._batches_left = 0
        self._parts_left: list[int] = []  # of each line
        self._reported = 0

    def cut(self, batch_tokens: int) -> None:
        """Cuts the parts into batches: the longest first, so that memory runs out at once or not
        at all."""
        lengths = [len(part.sentence.source) + 1 for part in self.parts]  # with eos
        order = sorted(range(len(self.parts)), key=lambda i: -lengths[i])
        self.batches = [order[part] for part in _cut([lengths[i] for i in order], batch_tokens)]
        self._batches_left = len(self.batches)
        self._parts_left = [0] * len(self.lines)
        for part in self.parts:
            self._parts_left[part.line] += 1

    @property
    def is_complete(self) -> bool:
        return not self._batches_left

    def take(self, hypotheses: list[list[Hypothesis]]) -> None:
        """Takes what was found for the next batch."""
        batch = self.batches[len(self.batches) - self._batches_left]
        self._batches_left -= 1
        for index, found in zip(batch, hypotheses, strict=True):
            part = self.parts[index]
            part.hypotheses = found
            self._parts_left[part.line] -= 1

    def newly_complete(self) -> int:
        """How many lines are complete that were not when this was asked last."""
        before, self._reported = self._reported, self._parts_left.count(0)
        return self._reported - before


def _cut(lengths: list[int], batch_tokens: int) -> list[slice]:
    """Cuts falling lengths into batches of at most so many tokens when padded, or of one row."""
    batches, start = [], 0
    while start < len(lengths):
        rows = max(1, batch_tokens // lengths[start])
        batches.append(slice(start, start + rows))
        start += rows
    return batches


def _one_by_one(engine: Engine) -> Runner:
    lock = threading.Lock()

    def run(batches: Iterator[Work | None]) -> Iterator[Result | None]:
        for batch in batches:
            if batch is None:
                yield None
                continue
            with lock:
                result = batch.run(engine)
            yield result

    return run
