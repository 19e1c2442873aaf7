"""Word alignments of the training text, as links between the subwords of the encoded corpus.

The file has one line per line of the text. It is read once, before training begins, and every error
in it is reported then. The links are stored in the cache and read memory-mapped.
"""

import json
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from transformer_mt.data import encoded, pharaoh
from transformer_mt.data.cache import entry, entry_name
from transformer_mt.data.encoded import EncodedCorpus, EncodedText
from transformer_mt.data.languages import has_spaces
from transformer_mt.data.subword import Subwords
from transformer_mt.data.words import Spans, Words
from transformer_mt.utils.console import progress
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import content_of, lines

FORMAT = 1
# The key of the config that names the file, for messages.
SETTING = "guided_attention.alignments"


class Alignments(encoded.CachedArrays):
    """The links of each pair of an encoded corpus, as (source position, target position) of
    subwords.

    `facts` holds counts: lines of the file, links between words of the pairs that are used, and
    target subwords of these pairs that have no link.
    """

    name = "alignments"

    def _load(self, folder: Path) -> None:
        self._links = EncodedText(folder, "links", self.facts["pairs"])

    def __getitem__(self, index: int) -> np.ndarray:
        """Returns the links of a pair: integers (links, 2)."""
        return self._links[index].reshape(-1, 2)

    def matrix(self, sentences: np.ndarray, target_len: int, source_len: int) -> np.ndarray:
        """Returns what each target subword of a batch should attend to: float32 (batch, target_len,
        source_len). Each row has equal shares, with a sum of 1, for the source subwords that its
        target subword is linked to. A row without links is zero."""
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
    cache: Path,
) -> Alignments:
    """Returns the alignments of an encoded corpus, from the cache if they are there.

    Each subword of a word is linked to each subword of the words that this word is linked to.

    Args:
        path: the file, in Pharaoh's format.
        languages: the source language and the target language.

    Raises:
        UsageError: there is no such file.
        UserError: the file and the text have different numbers of lines, a line is not in the
            format, a link names a word that the sentence does not have, there is no link at all, or
            the cache can't be written.
    """
    if not path.is_file():
        raise UsageError(f"{SETTING}: {path}: there is no such file")
    content = content_of(path)
    if content.line_count != corpus.text_lines:
        raise UserError(
            f"{SETTING}: {path} has {content.line_count:,} lines, the training text "
            f"{corpus.text_lines:,}: there must be one line per pair, an empty one if the pair has "
            "no link"
        )
    name = entry_name(FORMAT, content.sha256, corpus.key, tuple(map(has_spaces, languages)))
    make = partial(_write, path, corpus, subwords, languages)
    return Alignments(entry(cache / f"alignments-{name}", make))


def _write(
    path: Path, corpus: EncodedCorpus, subwords: Subwords, languages: tuple[str, str], folder: Path
) -> None:
    sides = (
        (corpus.source, Words(subwords.source, languages[0])),
        (corpus.target, Words(subwords.target, languages[1])),
    )
    count, longest = corpus.text_lines, corpus.facts["longest"]
    links = linked = 0
    with (
        encoded.Writer(folder, "links", encoded.smallest_dtype(longest)) as writer,
        progress(total=count, title="alignments", unit="lines", unit_scale=True) as bar,
    ):
        text = lines(path)
        for first in range(0, count, encoded.CHUNK):
            # Read some lines of the file, and find the pairs of the corpus that belong to them.
            chunk = list(islice(text, encoded.CHUNK))
            start, end = np.searchsorted(corpus.lines, (first, first + len(chunk)))
            used = corpus.lines[start:end]
            word_links, pairs = _links_of_words(path, chunk, first, used)
            # Check the links of words, and replace them with links of subwords.
            spans = [words.spans(*side.slice(start, end)) for side, words in sides]
            _check_range(path, word_links, used[pairs], [own.counts[pairs] for own in spans])
            subword_links, pairs = _links_of_subwords(word_links, pairs, spans)
            writer.add(subword_links.flatten(), 2 * np.bincount(pairs, minlength=end - start))
            links += len(word_links)
            linked += len(np.unique(pairs * longest + subword_links[:, 1]))
            bar.update(len(chunk))
    if not links:
        raise UserError(f"{SETTING}: {path}: there is no link in it for any training pair")
    facts = {
        "lines": count,
        "pairs": writer.count,
        "links": links,
        "unlinked": corpus.facts["target_tokens"] - linked,
    }
    (folder / "facts.json").write_text(json.dumps(facts))


def _links_of_words(
    path: Path, chunk: list[str], first: int, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the links of the lines that are used, (links, 2), and for each link the number of its
    pair among those lines, (links,).

    Args:
        first: the number of the chunk's first line, from 0.
        used: the numbers of the lines that are a pair of the corpus, (pairs,).
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
    """Raises UserError if a link names a word that is not there.

    Args:
        links: (links, 2).
        numbers: the line of each link, from 0: (links,).
        counts: how many words the source and the target of each link's line have: (links,) each.
    """
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
    """Returns the links between all subwords of linked words, and the pair of each link."""
    starts, lengths = [], []
    for own, numbers in zip(spans, links.T, strict=True):
        words = (np.cumsum(own.counts) - own.counts)[pairs] + numbers
        starts.append(own.starts[words])
        lengths.append(own.lengths[words])
    # A link of words with m and n subwords becomes m * n links, numbered from 0; the number gives
    # the two subwords.
    counts = lengths[0] * lengths[1]
    link = np.repeat(np.arange(len(links)), counts)
    number = np.arange(len(link)) - np.repeat(np.cumsum(counts) - counts, counts)
    source, target = np.divmod(number, lengths[1][link])
    return np.column_stack([starts[0][link] + source, starts[1][link] + target]), pairs[link]
