"""From a data config to what training reads: the corpus, its subwords, and the encoded pairs."""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from transformer_mt.config.schema import Config, SubwordConfig
from transformer_mt.data.alignments import Alignments, encoded_alignments
from transformer_mt.data.cache import entry
from transformer_mt.data.corpus import (
    Corpus,
    HeldOut,
    Pair,
    Split,
    hold_out,
    open_corpus,
    training_pairs,
    wmt14ende_vocabulary,
)
from transformer_mt.data.encoded import EncodedCorpus, Limits, encoded_corpus
from transformer_mt.data.subword import TRAINING_LINES, Subwords
from transformer_mt.runtime.console import say, warn
from transformer_mt.runtime.files import count_lines

# Another one for entries of the cache that were made otherwise.
FORMAT = 2


@dataclass(frozen=True)
class PreparedData:
    """Everything that training and scoring read. dev and test are None where there are none."""

    subwords: Subwords
    train: EncodedCorpus
    dev: EncodedCorpus | None
    dev_split: Split | None
    test_split: Split | None
    held_out_files: list[Path]
    # A hash of all that decides what is read in training: text, subwords, filters and alignments.
    key: str = ""
    # Where attention is guided by them.
    alignments: Alignments | None = None

    def with_held_out_in(self, folder: Path) -> PreparedData:
        """The same, with the held-out pairs read from copies of their files in `folder`."""

        def moved(split: Split | None) -> Split | None:
            if split is None or split.paths[0] not in self.held_out_files:
                return split
            return replace(split, paths=tuple(folder / path.name for path in split.paths))

        return replace(self, dev_split=moved(self.dev_split), test_split=moved(self.test_split))

    def report(self) -> Iterator[str]:
        """Lines that tell a person what is trained on."""
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
            facts = self.alignments.facts
            unlinked = facts["unlinked"] / self.train.facts["target_tokens"]
            yield (
                f"alignments      {facts['lines']:,} lines, {facts['links']:,} links of words; "
                f"{unlinked:.1%} of the target subwords have none"
            )
        if self.dev is not None:
            yield f"dev pairs       {len(self.dev):,}"
        if self.test_split is not None:
            yield f"test pairs      {count_lines(self.test_split.paths[-1]):,}"


def prepare(config: Config, subwords: Subwords | None = None) -> PreparedData:
    """Reads, checks and encodes the corpus of a config; nothing is written but into the cache.

    With `subwords` (those of the model that training starts from), none are trained.

    Raises:
        UserError: anything wrong with the data.
    """
    corpus = open_corpus(config.data)
    cache = Path(config.data.cache)
    text = corpus.train.content()
    _check(corpus, text)
    held_out = _hold_out(corpus, text, config, cache)
    dev = corpus.dev or held_out.splits.get("dev")
    test = corpus.test or held_out.splits.get("test")
    dropped: Counter = Counter()

    def pairs(counts: Counter, lines: array | None = None) -> Iterator[Pair]:
        return training_pairs(
            corpus.train, held_out.texts, config.data.drop_duplicates, counts, lines
        )

    content = "\n".join(
        [
            text,
            str(config.data.drop_duplicates),
            *sorted(hashlib.sha256(text.encode()).hexdigest() for text in held_out.texts),
        ]
    )
    if subwords is None:
        subwords = _subwords(config, content, lambda: pairs(Counter()), cache)
    if config.training.init_from is None:
        _tell_of_small_vocabularies(subwords, config.subword)
    lines, line_count = array("i"), count_lines(corpus.train.paths[0])
    train = encoded_corpus(
        pairs(dropped, lines),
        content=content,
        subwords=subwords,
        limits=Limits(config.data.max_length, config.data.max_length_ratio),
        dropped=dropped,
        cache=cache,
        title="encoding",
        total=line_count,
        lines=lines,
    )
    alignments = None
    if config.guided_attention.alignments is not None:
        alignments = encoded_alignments(
            Path(config.guided_attention.alignments),
            train,
            subwords,
            (config.data.source_lang, config.data.target_lang),
            line_count,
            cache,
        )
    return PreparedData(
        subwords=subwords,
        train=train,
        dev=_encode_whole(dev, subwords, cache) if dev else None,
        dev_split=dev,
        test_split=test,
        held_out_files=[path for split in held_out.splits.values() for path in split.paths],
        key=train.key if alignments is None else alignments.key,
        alignments=alignments,
    )


def _check(corpus: Corpus, text: str) -> None:
    """Reads dev and test set to their ends, of which some is otherwise not read before training has
    ended, and warns of what gives scores that mean nothing; `text` is the training text's content.

    Raises:
        UserError: a line is not UTF-8, or not a pair.
    """
    names = {text: "train"}
    for split in corpus.splits()[1:]:
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


def _tell_of_small_vocabularies(subwords: Subwords, config: SubwordConfig) -> None:
    """Says where the text had fewer subwords than the config asks for."""
    if config.type == "vocabulary":
        return
    sides = [("vocab_size", subwords.source.size, config.vocab_size)]
    if not subwords.joint:
        sides = [
            (f"{side}_vocab_size", vocabulary.size, own or config.vocab_size)
            for side, vocabulary, own in (
                ("source", subwords.source, config.source_vocab_size),
                ("target", subwords.target, config.target_vocab_size),
            )
        ]
    for key, size, wanted in sides:
        if size < wanted:
            say(f"subword.{key}: the text has {size:,} subwords, not {wanted:,}; using those")


def _hold_out(corpus: Corpus, text: str, config: Config, cache: Path) -> HeldOut:
    """Draws what the config does not name. The files go beside the cache's other entries, where
    they can be read before there is a model directory, which gets a copy."""
    seed = config.training.seed
    missing = [name for name in ("dev", "test") if getattr(corpus, name) is None]
    key = _key(text, missing, config.data.held_out, seed)
    held_out = hold_out(corpus, config.data, seed, cache / f"held_out-{key}")
    for name, split in held_out.splits.items():
        say(
            f"data.{name} is not given: {count_lines(split.paths[0]):,} pairs are held out of the "
            "training text"
        )
    return held_out


def _subwords(
    config: Config, content: str, pairs: Callable[[], Iterator[Pair]], cache: Path
) -> Subwords:
    """The subwords of the training text, from the cache if it has them."""
    if config.subword.type == "vocabulary":
        path = config.subword.vocabulary
        return Subwords.from_vocabulary(Path(path) if path else wmt14ende_vocabulary(config.data))

    def make(folder: Path) -> None:
        say(f"training the {config.subword.type} subword model ...")
        Subwords.train(pairs, config.subword).save(folder)

    # What is sampled later makes no difference to the model.
    settings = config.subword.model_dump(exclude={"sampling"})
    folder = cache / f"subword-{_key(content, settings, TRAINING_LINES[config.subword.type])}"
    return Subwords.load(entry(folder, make))


def _key(*parts: object) -> str:
    """A name for what follows from `parts`."""
    return hashlib.sha256(repr((FORMAT, *parts)).encode()).hexdigest()[:32]


def _encode_whole(split: Split, subwords: Subwords, cache: Path) -> EncodedCorpus:
    """A dev set keeps all its pairs, so that its loss means the same in every run."""
    return encoded_corpus(
        split,
        content=f"whole {split.content()}",
        subwords=subwords,
        limits=Limits(),
        dropped=Counter(),
        cache=cache,
        title=f"encoding {split.name}",
        total=count_lines(split.paths[0]),
    )
