"""Word alignments of the training text, as links between the subwords of the encoded corpus.

A file has a line for each line of the text. It is read once, and what is wrong with it told before
training begins; then the links lie in the cache, beside the encoded corpus, and are read
memory-mapped.
"""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from transformer_mt.data import pharaoh
from transformer_mt.data.cache import entry
from transformer_mt.data.encoded import CHUNK, EncodedCorpus, EncodedText, Writer
from transformer_mt.data.subword import Subwords
from transformer_mt.data.words import Spans, Words, has_spaces
from transformer_mt.runtime.console import progress
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.files import content_hash, count_lines, lines

FORMAT = 1
# The setting that names the file.
SETTING = "guided_attention.alignments"


class Alignments:
    """The links of each pair of an encoded corpus: (source position, target position), of subwords.

    `facts` holds counts: lines of the file, links between words of the pairs that are used, and
    target subwords of theirs without a link.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
            self._links = EncodedText(folder, "links")
            if len(self._links.lengths) != self.facts["pairs"]:
                raise ValueError("there are not as many as pairs")
            if self._links.offsets[-1] != len(self._links.ids):
                raise ValueError("the links are not as many as were written")
        except (OSError, EOFError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{folder}: damaged alignments ({error}). Delete the folder; it is made anew"
            ) from None

    @property
    def key(self) -> str:
        """A hash of all that made it, the encoded corpus included."""
        return self._folder.name

    def __reduce__(self) -> tuple:
        """Another process maps the files for itself."""
        return Alignments, (self._folder,)

    def __getitem__(self, index: int) -> np.ndarray:
        """The links of a pair: (links, 2)."""
        return self._links[index].reshape(-1, 2)

    def matrix(self, sentences: np.ndarray, target_len: int, source_len: int) -> np.ndarray:
        """What each target subword of a batch should attend to: float32 (batch, target_len,
        source_len), rows that sum to 1, in equal shares for all that it is linked to; or to 0, if
        that is nothing."""
        matrix = np.zeros((len(sentences), target_len, source_len), np.float32)
        for row, sentence in enumerate(sentences):
            source, target = self[sentence].T
            matrix[row, target, source] = 1
        return matrix / np.maximum(matrix.sum(axis=2, keepdims=True), 1)


def encoded_alignments(
    path: Path,
    corpus: EncodedCorpus,
    subwords: Subwords,
    languages: tuple[str, str],
    text_lines: int,
    cache: Path,
) -> Alignments:
    """The alignments of an encoded corpus, from the cache if they are there.

    Each subword of a word is linked to each subword of the words that it is linked to.

    Args:
        path: the file, in Pharaoh's format.
        languages: of source and target.
        text_lines: how many the corpus's text has.

    Raises:
        UsageError: there is no such file.
        UserError: it has not as many lines as the text, a line is not in the format, a link is of a
            word that the sentence does not have, or there is no link at all; or the cache can't be
            written.
    """
    if not path.is_file():
        raise UsageError(f"{SETTING}: {path}: there is no such file")
    count = count_lines(path)
    if count != text_lines:
        raise UserError(
            f"{SETTING}: {path} has {count:,} lines, the training text {text_lines:,}: one line of "
            "each belongs together, and an empty one where there is no link"
        )
    parts = (FORMAT, content_hash(path), corpus.key, tuple(map(has_spaces, languages)))
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]

    def make(folder: Path) -> None:
        sides = (
            (corpus.source, Words(subwords.source, languages[0])),
            (corpus.target, Words(subwords.target, languages[1])),
        )
        _write(path, count, corpus, sides, folder)

    folder = cache / f"alignments-{key}"
    return Alignments(entry(folder, make))


def _write(
    path: Path,
    count: int,
    corpus: EncodedCorpus,
    sides: tuple[tuple[EncodedText, Words], ...],
    folder: Path,
) -> None:
    dtype = np.dtype(np.uint16 if corpus.facts["longest"] <= 1 << 16 else np.int32)
    links = linked = 0
    with (
        Writer(folder, "links", dtype) as writer,
        progress(total=count, title="alignments", unit="lines", unit_scale=True) as bar,
    ):
        text = lines(path)
        for first in range(0, count, CHUNK):
            chunk = list(islice(text, CHUNK))
            start, end = np.searchsorted(corpus.lines, (first, first + len(chunk)))
            used = corpus.lines[start:end]
            of_words, pairs = _links_of_words(path, chunk, first, used)
            spans = [words.spans(*_flat(side, start, end)) for side, words in sides]
            _check_range(path, of_words, used[pairs], [own.counts[pairs] for own in spans])
            of_subwords, pairs = _links_of_subwords(of_words, pairs, spans)
            writer.add(of_subwords.flatten(), 2 * np.bincount(pairs, minlength=end - start))
            links += len(of_words)
            linked += len(np.unique(pairs * corpus.facts["longest"] + of_subwords[:, 1]))
            bar.update(len(chunk))
        facts = {
            "lines": count,
            "pairs": len(writer),
            "links": links,
            "unlinked": corpus.facts["target_tokens"] - linked,
        }
    if not links:
        raise UserError(f"{SETTING}: {path}: there is no link in it for any training pair")
    (folder / "facts.json").write_text(json.dumps(facts))


def _flat(side: EncodedText, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Some sentences in a row, and their lengths."""
    ids = np.asarray(side.ids[side.offsets[start] : side.offsets[end]])
    return ids, side.lengths[start:end]


def _links_of_words(
    path: Path, chunk: list[str], first: int, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The links of the lines that are used, (links, 2), and which of those each belongs to.

    Args:
        first: the number of the first line, from 0.
        used: the numbers of those of the lines that are a pair of the corpus.
    """
    try:
        links, counts = pharaoh.read(chunk)
    except pharaoh.FormatError as error:
        raise UserError(f"{SETTING}: {path}, line {first + error.index + 1}: {error}") from None
    pair_of_line = np.full(len(chunk), -1)
    pair_of_line[used - first] = np.arange(len(used))
    pairs = np.repeat(pair_of_line, counts)
    return links[pairs >= 0], pairs[pairs >= 0]


def _check_range(
    path: Path, links: np.ndarray, numbers: np.ndarray, counts: list[np.ndarray]
) -> None:
    """Complains of a link to a word that is not there; `numbers` has the line of each link, from 0,
    `counts` the words of its source and of its target."""
    wrong = np.flatnonzero((links >= np.column_stack(counts)).any(axis=1))
    if len(wrong):
        link, line = links[wrong[0]], numbers[wrong[0]] + 1
        source, target = (int(own[wrong[0]]) for own in counts)
        raise UserError(
            f"{SETTING}: {path}, line {line}: {pharaoh.write([link])}: there are {source} words in "
            f"the source of this line, and {target} in its target, of which the first is number 0. "
            "Words are what stands between the spaces of the training text (tokens that @@ joins "
            "are one), or its subwords where a language is written without spaces"
        )


def _links_of_subwords(
    links: np.ndarray, pairs: np.ndarray, spans: list[Spans]
) -> tuple[np.ndarray, np.ndarray]:
    """From links between words to those between all their subwords; both with their pairs."""
    starts, lengths = [], []
    for own, numbers in zip(spans, links.T, strict=True):
        words = (np.cumsum(own.counts) - own.counts)[pairs] + numbers
        starts.append(own.starts[words])
        lengths.append(own.lengths[words])
    # A link of words becomes so many, which are numbered, and the number taken apart again.
    counts = lengths[0] * lengths[1]
    link = np.repeat(np.arange(len(links)), counts)
    number = np.arange(len(link)) - np.repeat(np.cumsum(counts) - counts, counts)
    source, target = np.divmod(number, lengths[1][link])
    return np.column_stack([starts[0][link] + source, starts[1][link] + target]), pairs[link]
