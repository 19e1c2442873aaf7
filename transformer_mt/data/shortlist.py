"""Lexical shortlists: for each source subword, the target subwords that it is likely translated to.

With a shortlist, decoding computes the probabilities of few target subwords instead of the whole
vocabulary (Jean et al. 2015, arXiv 1412.2007, section 4). The translations of each subword are
learnt from the training text by IBM Model 1, which needs no alignments. The file has the format of
CTranslate2's vocabulary maps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from transformer_mt.data.encoded import EncodedCorpus, EncodedText
from transformer_mt.data.spans import symbol_ids
from transformer_mt.data.subword import Subwords
from transformer_mt.data.vocabulary import Vocabulary
from transformer_mt.utils.console import progress
from transformer_mt.utils.errors import UserError

# The most translations of a source subword, and the least probability of one. The most frequent
# target subwords are candidates for every sentence, because they often translate no single subword.
# docs/decoding.md says how many target subwords of unseen pairs these values find.
TRANSLATIONS = 50
LEAST_PROBABILITY = 1e-3
FREQUENT = 100
# The probabilities change little afterwards.
ITERATIONS = 5
# One pair in so many is not learnt from, so that the shortlist can be tested on it; at most so many
# pairs.
TEST_EVERY = 50
MOST_TESTED = 2_000
# The number of links between a source position and a target position that are learnt from. Four
# bytes are held for each, and up to as much again while they are counted. These are about 500,000
# pairs of 16 subwords on each side.
MOST_LINKS = 1 << 27
# The number of links that are made at once.
LINKS_AT_ONCE = 1 << 21

Rows = Sequence[Sequence[int]]


@dataclass
class Candidates:
    """The target subwords that may follow in the sentences of a batch.

    Attributes:
        ids: those of all sentences together, in rising order, int64 (candidates,).
        forbidden: -inf where a candidate is only one of other sentences, and else 0, float32
            (sentences, candidates). So a translation does not depend on the other sentences.
    """

    ids: np.ndarray
    forbidden: np.ndarray

    def select(self, sentences: np.ndarray) -> None:
        """Keeps the sentences with these indices, in this order."""
        self.forbidden = self.forbidden[sentences]


class Shortlist:
    """The candidates that follow from each source subword.

    Args:
        always: the ids of the target subwords that are candidates for every sentence.
        translations: the ids of the candidates of each source subword.
        target_size: the number of target subwords.
    """

    def __init__(self, always: Iterable[int], translations: Rows, target_size: int) -> None:
        self.always = sorted(set(always))
        self.translations = [list(row) for row in translations]
        self._target_size = target_size
        self._lengths = np.array([len(row) for row in self.translations], np.int64)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._targets = np.fromiter(chain.from_iterable(self.translations), np.int64)

    def candidates(self, sources: Rows, prefixes: Rows) -> Candidates:
        """Returns the candidates of a batch.

        Args:
            sources: the ids of each sentence, without bos and eos.
            prefixes: the ids that each output begins with, which become candidates too.
        """
        # bool (sentences, vocabulary). It takes less memory than the logits of one step.
        allowed = np.zeros((len(sources), self._target_size), bool)
        allowed[:, self.always] = True
        for own, source, prefix in zip(allowed, sources, prefixes, strict=True):
            ids = np.array(source, np.int64)
            own[_flat(self._targets, self._starts[ids], self._lengths[ids])] = True
            own[prefix] = True
        ids = np.flatnonzero(allowed.any(axis=0))
        return Candidates(ids, np.where(allowed[:, ids], np.float32(0), np.float32(-np.inf)))

    def text(self, subwords: Subwords) -> str:
        """Returns the content of the file, which `read` reads.

        A line holds a source subword, a tab, and the target subwords, separated by spaces. The
        first line has no source subword; its target subwords are candidates for every sentence.
        The format can't hold a subword with a space, a tab or a line end (see `_by_piece`), which
        is left out.
        """
        sources = {i: piece for piece, i in _by_piece(subwords.source).items()}
        targets = {i: piece for piece, i in _by_piece(subwords.target).items()}
        lines = ["\t" + " ".join(targets[i] for i in self.always if i in targets)]
        for i, row in enumerate(self.translations):
            pieces = [targets[j] for j in row if j in targets]
            if pieces and i in sources:
                lines.append(f"{sources[i]}\t{' '.join(pieces)}")
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def read(cls, text: str, subwords: Subwords) -> Shortlist:
        """Reads what `text` has written. Target subwords that the format can't hold are candidates
        for every sentence, as the special ones are.

        Raises:
            ValueError: it is not such a text, or one for other subwords.
        """
        sources, targets = _by_piece(subwords.source), _by_piece(subwords.target)
        target = subwords.target
        always = set(range(target.size)) - set(targets.values())
        always |= {*target.special, *symbol_ids(target)}
        translations: list[list[int]] = [[] for _ in range(subwords.source.size)]
        first, *lines = text.removesuffix("\n").split("\n")
        try:
            no_source, pieces = first.split("\t")
            if no_source:
                raise ValueError("the first line must begin with a tab")
            always.update(targets[piece] for piece in filter(None, pieces.split(" ")))
            for line in lines:
                source, pieces = line.split("\t")
                translations[sources[source]] = [targets[piece] for piece in pieces.split(" ")]
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is none of the model's subwords") from None
        return cls(always, translations, target.size)


def _by_piece(vocabulary: Vocabulary) -> dict[str, int]:
    """Returns the ids of the subwords that a file can hold, by their text. A vocabulary that came
    with BPE'd text may have others: an empty one, or one with a line end."""
    pieces = vocabulary.pieces(range(vocabulary.size))
    counts = Counter(pieces)
    return {
        piece: i
        for i, piece in enumerate(pieces)
        if counts[piece] == 1 and piece and not set(piece) & set(" \t\r\n")
    }


# -------------------------------------------------------------------------------------- learning


@dataclass(frozen=True)
class Tested:
    """How a shortlist does on pairs that it was not learnt from.

    Attributes:
        pairs: their number; 0 if the text is too small.
        recall: the share of their target subwords that are candidates of their own source.
        candidates: the mean number of candidates of a sentence.
    """

    pairs: int
    recall: float
    candidates: float

    def __str__(self) -> str:
        if not self.pairs:
            return "not tested, because the text is too small"
        return (
            f"of {self.pairs:,} other pairs, it has {self.recall:.1%} of the target subwords; "
            f"{self.candidates:.0f} candidates per sentence"
        )


def learn(
    corpus: EncodedCorpus,
    subwords: Subwords,
    translations: int = TRANSLATIONS,
    least: float = LEAST_PROBABILITY,
    frequent: int = FREQUENT,
) -> tuple[Shortlist, Tested]:
    """Learns a shortlist from encoded pairs, and tests it on some that it has not learnt from. The
    same pairs give the same shortlist.

    Args:
        translations: the most candidates of a source subword.
        least: the least probability of one.
        frequent: the number of most frequent target subwords that are always candidates.

    Raises:
        UserError: there are too few pairs to learn from.
    """
    numbers = np.arange(len(corpus))
    tested = numbers[TEST_EVERY - 1 :: TEST_EVERY][:MOST_TESTED]
    learnt = _sample(corpus, np.setdiff1d(numbers, tested))
    if not len(learnt):
        raise UserError("a shortlist can't be learnt from so few pairs")
    source_size, target = subwords.source.size, subwords.target
    sources, targets, probabilities = ibm_model_1(
        corpus.source, corpus.target, learnt, (source_size, target.size)
    )
    # The most probable translations of each source subword come first.
    kept = (probabilities >= least) & (sources < source_size)
    sources, targets, probabilities = sources[kept], targets[kept], probabilities[kept]
    order = np.lexsort((targets, -probabilities, sources))
    ends = np.searchsorted(sources[order], np.arange(source_size + 1))
    rows = [
        targets[order[start:end][:translations]].tolist() for start, end in pairwise(ends.tolist())
    ]
    if subwords.joint:  # A name is often translated as it is, and may occur once.
        rows = [row if i in row else [*row, i] for i, row in enumerate(rows)]
    counts = np.bincount(_ids(corpus.target, learnt)[0], minlength=target.size)
    always = np.argsort(-counts, kind="stable")[:frequent].tolist()
    always = [*always, *target.special, *symbol_ids(target)]
    shortlist = Shortlist(always, rows, target.size)
    return shortlist, _test(shortlist, corpus, tested)


def _test(shortlist: Shortlist, corpus: EncodedCorpus, pairs: np.ndarray) -> Tested:
    found = total = sizes = 0
    for pair in pairs.tolist():
        candidates = shortlist.candidates([corpus.source[pair].tolist()], [[]]).ids
        target = corpus.target[pair]
        found += int(np.isin(target, candidates).sum())
        total += len(target)
        sizes += len(candidates)
    return Tested(len(pairs), found / max(1, total), sizes / max(1, len(pairs)))


def _sample(corpus: EncodedCorpus, pairs: np.ndarray) -> np.ndarray:
    """Returns all of the pairs, or, in rising order, random ones with MOST_LINKS links together."""
    order = np.random.default_rng(1).permutation(pairs)
    lengths = corpus.source.lengths.astype(np.int64), corpus.target.lengths.astype(np.int64)
    links = np.cumsum((lengths[0][order] + 1) * lengths[1][order])
    return np.sort(order[: np.searchsorted(links, MOST_LINKS, "right")])


def ibm_model_1(
    source: EncodedText,
    target: EncodedText,
    pairs: np.ndarray,
    sizes: tuple[int, int],
    iterations: int = ITERATIONS,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Learns with what probability each source subword is translated to each target subword.

    This is IBM Model 1 (Brown et al. 1993, "The Mathematics of Statistical Machine Translation",
    section 4.1), learnt by EM from equal probabilities. Each source has one more subword, the empty
    one, whose id is the number of source subwords.

    Args:
        pairs: the numbers of the pairs to learn from.
        sizes: the numbers of source subwords and of target subwords.

    Returns: the source ids, the target ids, and t(target | source) of all that occur in the same
        pair, in the order of these ids: int64, int64 and float64, (occurring,).
    """
    lengths = [side.lengths[pairs].astype(np.int64) for side in (source, target)]
    links = np.cumsum((lengths[0] + 1) * lengths[1])
    # Where the number of links passes a multiple of LINKS_AT_ONCE.
    chunks = np.split(pairs, 1 + np.flatnonzero(np.diff(links // LINKS_AT_ONCE)))
    total = len(pairs) * (1 + iterations)
    with progress(total=total, title="learning translations", unit="pairs", unit_scale=True) as bar:
        # A key stands for a source subword and a target subword of the same pair. Of each link the
        # place of its key among all keys is kept; of each target position, the number of its links.
        keys_of_chunks, found = [], []
        for chunk in chunks:
            keys, widths = _links(source, target, chunk, sizes)
            keys, places = np.unique(keys, return_inverse=True)
            keys_of_chunks.append(keys)
            found.append((places.astype(np.int32), widths))
            bar.update(len(chunk))
        all_keys = np.unique(np.concatenate(keys_of_chunks))
        for number, (keys, (places, widths)) in enumerate(zip(keys_of_chunks, found, strict=True)):
            found[number] = np.searchsorted(all_keys, keys).astype(np.int32)[places], widths
        sources, targets = np.divmod(all_keys, sizes[1])
        firsts = np.flatnonzero(np.diff(sources, prepend=-1))  # the first key of each source
        counts_of_keys = np.diff(firsts, append=len(sources))
        probabilities = np.ones(len(all_keys))
        for _ in range(iterations):
            # How often a source subword is expected to be translated to a target subword.
            expected = np.zeros(len(all_keys))
            for chunk, (places, widths) in zip(chunks, found, strict=True):
                shares = probabilities[places]
                shares /= np.repeat(np.add.reduceat(shares, np.cumsum(widths) - widths), widths)
                expected += np.bincount(places, shares, len(all_keys))
                bar.update(len(chunk))
            totals = np.add.reduceat(expected, firsts)
            probabilities = expected / np.repeat(totals, counts_of_keys)
    return sources, targets, probabilities


def _links(
    source: EncodedText, target: EncodedText, pairs: np.ndarray, sizes: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a key for each target position and each source subword of its pair, the empty one
    first: source id * sizes[1] + target id, int64 (links,); and the number of links of each target
    position, int64 (positions,)."""
    (source_ids, source_lengths), (target_ids, target_lengths) = (
        _ids(side, pairs) for side in (source, target)
    )
    starts = np.cumsum(source_lengths) - source_lengths
    with_empty = np.insert(source_ids, starts, sizes[0])
    starts += np.arange(len(starts))
    widths = np.repeat(source_lengths + 1, target_lengths)
    sources = _flat(with_empty, np.repeat(starts, target_lengths), widths)
    return sources * sizes[1] + np.repeat(target_ids, widths), widths


def _ids(text: EncodedText, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of some sentences, concatenated, and the length of each; both int64."""
    lengths = text.lengths[pairs].astype(np.int64)
    return _flat(text.ids, text.offsets[pairs], lengths).astype(np.int64), lengths


def _flat(values: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns values[start : start + length] of all starts and lengths, concatenated."""
    shifts = starts - (np.cumsum(lengths) - lengths)
    return values[np.repeat(shifts, lengths) + np.arange(lengths.sum())]
