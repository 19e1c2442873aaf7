"""Writes the lines of text that the outputs of an engine stand for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from transformer_mt.config.schema import Config
from transformer_mt.data.alignments import NONE, Link, Words, word_count
from transformer_mt.data.annotation import outside_annotations
from transformer_mt.data.subword import Subwords
from transformer_mt.decoding.checks import Warning
from transformer_mt.decoding.engine import Hypothesis, length_penalty
from transformer_mt.decoding.line_reader import BY_ALIGNMENT, BY_SEARCH, Reading, characters
from transformer_mt.decoding.output import Aligned, Output, Translation
from transformer_mt.decoding.protection import restored
from transformer_mt.decoding.segments import Segment
from transformer_mt.decoding.tags import Tagger
from transformer_mt.utils.languages import Place, has_spaces


@dataclass(frozen=True)
class LineWriter:
    """Makes text of the hypotheses for the segments of a line.

    Attributes:
        config: the languages, and how to translate.
        sides: gives the words of both vocabularies. It is called only for alignments, because it
            looks at the whole vocabularies.
    """

    subwords: Subwords
    config: Config
    sides: Callable[[], list[Words]]

    def translation(
        self,
        line: str,
        reading: Reading,
        found: list[list[Hypothesis]],
        need_alignment: bool,
        check: Callable[[str], list[Warning]],
    ) -> Translation:
        """The translation of a line.

        Args:
            reading: what was read of it.
            found: the hypotheses of each of its segments.
            need_alignment: whether outputs get their words and their alignment.
            check: gives the warnings about an output.
        """
        segments, replaced, way = reading.segments, reading.replaced, reading.way
        pieces = [
            piece for segment in segments for piece in self.subwords.source.pieces(segment.ids)
        ]
        ranks = range(max(map(len, found), default=1))
        with_links = need_alignment or bool(reading.tags)
        outputs = [self._output(reading, found, rank, with_links) for rank in ranks]
        text = line if replaced is None else replaced.text
        words = self._source_words(text, segments) if with_links else []
        places = [(segment.start, segment.end) for segment in segments]
        if replaced is not None:
            if not segments:  # nothing but spans
                outputs = [replace(output, text=line) for output in outputs]
            elif reading.tags:
                outputs = [self._tagged(output, reading, words) for output in outputs]
            if way == BY_SEARCH and any(h.is_repaired for own in found for h in own):
                way = BY_ALIGNMENT
            words, places = (list(map(replaced.at, own)) for own in (words, places))
        if not need_alignment:
            outputs = [replace(output, alignment=None, words=None) for output in outputs]
        if not self.config.decoding.sampling:  # equal samples tell how probable a text is
            outputs = _different(outputs)
        source_words = words if need_alignment else None
        return Translation(line, pieces, outputs, source_words, places, way, check)

    def _tagged(self, output: Output, reading: Reading, words: list[Place]) -> Output:
        """An output of a line without tags, with them."""
        language = self.config.data.target_lang
        own_words = output.words or []
        source = reading.replaced.text if reading.replaced else ""
        tagger = Tagger(source, words, output.text, own_words, output.alignment or [], language)
        replaced = tagger.tagged(reading.tags)
        return replace(
            output,
            text=replaced.original,
            words=list(map(replaced.at, own_words)),
            # A tag at an end belongs to the part there.
            parts=[
                (start and replaced.at((start, start))[0], replaced.at((end, end))[0])
                for start, end in output.parts
            ],
        )

    def _source_words(self, line: str, segments: list[Segment]) -> list[Place]:
        """The place in the line of each word of its segments."""
        words: list[Place] = []
        for segment in segments:
            places = self.subwords.source.places(characters(line[segment.start : segment.end]))
            places = places[segment.first : segment.first + len(segment.ids)]
            words += _moved(self.sides()[0].places(segment.ids, places), segment.start)
        return words

    def _output(
        self, reading: Reading, found: list[list[Hypothesis]], rank: int, need_alignment: bool
    ) -> Output:
        """Joins the rank-th best hypothesis of each segment, or its last one if it has fewer."""
        text = ""
        pieces: list[str] = []
        links: list[Link] = []
        words: list[Place] = []
        places: list[Place] = []
        log_prob, length = 0.0, 0
        source_count = 0  # the source words of the segments before
        all_segments = zip(reading.segments, reading.sentences, found, strict=True)
        for segment, sentence, hypotheses in all_segments:
            text += segment.before
            start = len(text)
            hypothesis = hypotheses[min(rank, len(hypotheses) - 1)]
            decoded = self.subwords.target.decode(hypothesis.ids)
            if segment.is_fragment:
                decoded = decoded.rstrip(".!?。！？")
            shown = None
            if segment.originals:
                spaced = hypothesis.is_repaired and has_spaces(self.config.data.target_lang)
                shown = restored(decoded, segment.originals, spaced)
            text += decoded if shown is None else shown.original
            places.append((start, len(text)))
            text += segment.after
            pieces += self.subwords.target.pieces(hypothesis.ids)
            log_prob += hypothesis.log_prob
            length += len(hypothesis.ids) + 1
            if need_alignment:
                attention = hypothesis.attention
                if attention is not None:
                    read = sentence.source[len(segment.tags) :]
                    columns = outside_annotations(read, self.subwords)
                    attention = attention[:, len(segment.tags) :][:, columns]
                aligned = self.aligned(segment.ids, hypothesis.ids, attention)
                links += ((source_count + i, len(words) + j) for i, j in aligned.links)
                source_count += aligned.source_words
                of_subwords = self.subwords.target.decoded_places(hypothesis.ids)
                own_words = self.sides()[1].places(hypothesis.ids, of_subwords)
                words += _moved(own_words if shown is None else map(shown.at, own_words), start)
        return Output(
            # A vocabulary may hold characters that would end the line.
            text=re.sub(r"[\r\n]", " ", text),
            score=log_prob / length_penalty(max(length, 1), self.config.decoding),
            log_prob=log_prob,
            pieces=pieces,
            alignment=links if need_alignment else None,
            words=words if need_alignment else None,
            parts=places,
        )

    def aligned(
        self, source: list[int], target: list[int], attention: np.ndarray | None
    ) -> Aligned:
        """The word alignment that follows from `Hypothesis.attention`; without it, no links."""
        # The number of the word that each subword belongs to, for both sides.
        source_words, target_words = (
            side.numbers(np.array(ids, np.int64))
            for side, ids in zip(self.sides(), (source, target), strict=True)
        )
        links = []
        if attention is not None:
            links = word_alignment(attention, source_words, target_words)
        return Aligned(links, word_count(source_words), word_count(target_words))


def _different(outputs: list[Output]) -> list[Output]:
    """The outputs in their order, but each text only once, with the best of its scores. The others
    are the same text in other subwords."""
    different: dict[str, Output] = {}
    for output in outputs:
        known = different.setdefault(output.text, output)
        if output.score > known.score:
            different[output.text] = output
    return list(different.values())


def _moved(places: Iterable[Place], distance: int) -> Iterator[Place]:
    return ((distance + start, distance + end) for start, end in places)


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
