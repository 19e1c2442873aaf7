"""From a data config to what training reads: the corpus, its subwords, and the encoded pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from transformer_mt.config.schema import Config
from transformer_mt.data.alignments import Alignments, encoded_alignments
from transformer_mt.data.cache import entry
from transformer_mt.data.corpus import Corpus, Pair, Split, open_corpus
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.encoded import EncodedCorpus, Limits, encoded_corpus
from transformer_mt.data.held_out import HeldOut, hold_out
from transformer_mt.data.subword import TRAINING_LINES, Subwords, vocabulary_sizes
from transformer_mt.data.training_filter import TrainingFilter
from transformer_mt.runtime.console import say, warn

# A new number leaves entries of the cache unused that were made in another way.
FORMAT = 2


@dataclass(frozen=True)
class PreparedData:
    """Everything that training and scoring read.

    Attributes:
        dev, dev_split, test_split: None if there is no dev or test set.
        held_out_files: the files of pairs that were held out of the training text.
        key: a hash of all that decides what training reads: text, subwords, filters and alignments.
        alignments: None if none were asked for.
    """

    subwords: Subwords
    train: EncodedCorpus
    dev: EncodedCorpus | None
    dev_split: Split | None
    test_split: Split | None
    held_out_files: list[Path]
    key: str = ""
    alignments: Alignments | None = None

    def with_held_out_in(self, folder: Path) -> PreparedData:
        """Returns the same, with the held-out pairs read from copies of their files in `folder`."""

        def moved(split: Split | None) -> Split | None:
            if split is None or split.paths[0] not in self.held_out_files:
                return split
            return replace(split, paths=tuple(folder / path.name for path in split.paths))

        return replace(self, dev_split=moved(self.dev_split), test_split=moved(self.test_split))

    def report(self) -> Iterator[str]:
        """Yields lines that tell a person what training reads."""
        facts = self.train.facts
        yield f"training pairs  {facts['pairs']:,}"
        for reason, count in facts["dropped"].items():
            yield f"  left out      {count:,}: {reason}"
        for name, side in (("source", self.train.source), ("target", self.train.target)):
            tokens = facts[f"{name}_tokens"]
            yield (
                f"{name} subwords {tokens:,} ({tokens / len(self.train):.1f} a sentence, longest "
                f"{int(side.lengths.max())})"
            )
        unknown = facts["unknown"] / max(1, facts["source_tokens"] + facts["target_tokens"])
        yield f"  unknown       {facts['unknown']:,} ({unknown:.3%})"
        sizes = f"{self.subwords.source.size:,}"
        if not self.subwords.joint:
            sizes += f" source, {self.subwords.target.size:,} target"
        yield f"vocabulary      {sizes}{' (joint)' if self.subwords.joint else ''}"
        if self.alignments is not None:
            counts = self.alignments.facts
            unlinked = counts["unlinked"] / facts["target_tokens"]
            yield (
                f"alignments      {counts['lines']:,} lines, {counts['links']:,} links of words; "
                f"{unlinked:.1%} of the target subwords have none"
            )
        if self.dev is not None:
            yield f"dev pairs       {len(self.dev):,}"
        if self.test_split is not None:
            yield f"test pairs      {self.test_split.line_count:,}"


def prepare(
    config: Config, subwords: Subwords | None = None, alignments: Path | None = None
) -> PreparedData:
    """Reads, checks and encodes the corpus of a config. Only the cache is written.

    Args:
        subwords: those of the model that training starts from; None: they are trained.
        alignments: a file of word alignments of the training text, in Pharaoh's format.

    Raises:
        UserError: something is wrong with the data.
    """
    corpus = open_corpus(config.data)
    cache = Path(config.data.cache)
    _check(corpus)
    held_out = _hold_out(corpus, config, cache)
    dev = corpus.dev or held_out.splits.get("dev")
    test = corpus.test or held_out.splits.get("test")

    def reason_to_drop() -> Callable[[Pair], str | None]:
        """Decides which pairs are trained on, in one pass over the text."""
        return TrainingFilter(held_out.texts, config.data.drop_duplicates).reason_to_drop

    def pairs() -> Iterator[Pair]:
        reason = reason_to_drop()
        return (pair for pair in corpus.train if reason(pair) is None)

    hashes = sorted(hashlib.sha256(text.encode()).hexdigest() for text in held_out.texts)
    content = "\n".join([corpus.train.content(), str(config.data.drop_duplicates), *hashes])
    if subwords is None:
        subwords = _subwords(config, content, pairs, cache)
    if config.training.init_from is None and config.subword.type != "vocabulary":
        sizes = vocabulary_sizes(config.subword, subwords.joint)
        for (key, size), vocabulary in zip(sizes.items(), subwords.vocabularies, strict=True):
            if vocabulary.size < size:
                say(f"{key}: the text has {vocabulary.size:,} subwords, not {size:,}; using those")
    train = encoded_corpus(
        corpus.train,
        content=content,
        subwords=subwords,
        limits=Limits(config.data.max_length, config.data.max_length_ratio),
        cache=cache,
        title="encoding",
        total=corpus.train.line_count,
        reason_to_drop=reason_to_drop(),
    )
    links = None
    if alignments is not None:
        languages = config.data.source_lang, config.data.target_lang
        links = encoded_alignments(alignments, train, subwords, languages, cache)
    return PreparedData(
        subwords=subwords,
        train=train,
        dev=_encode_whole(dev, subwords, cache) if dev else None,
        dev_split=dev,
        test_split=test,
        held_out_files=[path for split in held_out.splits.values() for path in split.paths],
        key=train.key if links is None else links.key,
        alignments=links,
    )


def _check(corpus: Corpus) -> None:
    """Reads the dev and test sets to their ends, because training may read them only at its end,
    and warns of sets whose scores mean little.

    Raises:
        UserError: a line is not UTF-8, or not a pair.
    """
    names = {corpus.train.content(): "train"}
    for split in filter(None, (corpus.dev, corpus.test)):
        for side in split.check():
            warn(f"data.{split.name}: all lines of the {side} are blank")
        same = names.setdefault(split.content(), split.name)
        if same == "train":
            warn(
                f"data.{split.name} is the same text as data.train: its scores tell how well that "
                "was learnt, and nothing of other text"
            )
        elif same != split.name:
            warn(
                f"data.{split.name} is the same text as data.{same}, by which the best checkpoint "
                "is chosen: its scores are higher than those of other text"
            )


def _hold_out(corpus: Corpus, config: Config, cache: Path) -> HeldOut:
    """Draws the sets that the config does not name. The files go into the cache, because there may
    be no model directory yet; a model directory gets a copy."""
    seed = config.training.seed
    missing = [name for name in ("dev", "test") if getattr(corpus, name) is None]
    key = _key(corpus.train.content(), missing, config.data.held_out, seed)
    held_out = hold_out(corpus, config.data, seed, cache / f"held_out-{key}")
    for name, split in held_out.splits.items():
        say(
            f"data.{name} is not given: {split.line_count:,} pairs are held out of the training "
            "text"
        )
    return held_out


def _subwords(
    config: Config, content: str, pairs: Callable[[], Iterator[Pair]], cache: Path
) -> Subwords:
    """The subwords of the training text, from the cache if it has them."""
    if config.subword.type == "vocabulary":
        path = config.subword.vocabulary or DATASETS[config.data.dataset].vocabulary(
            config.data.root
        )
        return Subwords.from_vocabulary(Path(path))

    def make(folder: Path) -> None:
        say(f"training the {config.subword.type} subword model ...")
        Subwords.train(pairs, config.subword).save(folder)

    # Sampling happens later and does not change the model.
    settings = config.subword.model_dump(exclude={"sampling"})
    key = _key(content, settings, TRAINING_LINES[config.subword.type])
    return Subwords.load(entry(cache / f"subword-{key}", make))


def _key(*parts: object) -> str:
    """A name for an entry of the cache that follows from `parts`."""
    return hashlib.sha256(repr((FORMAT, *parts)).encode()).hexdigest()[:32]


def _encode_whole(split: Split, subwords: Subwords, cache: Path) -> EncodedCorpus:
    """Encodes all pairs of a dev set, so that its loss means the same in every run."""
    return encoded_corpus(
        split,
        content=f"whole {split.content()}",
        subwords=subwords,
        limits=Limits(),
        cache=cache,
        title=f"encoding {split.name}",
        total=split.line_count,
    )
