"""Prepares the data of a config for training: the corpus, its subwords, and the encoded pairs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from transformer_mt.config.schema import Config
from transformer_mt.data.alignments import Alignments, encoded_alignments
from transformer_mt.data.annotation import (
    LEAST_DICE,
    LEAST_LINES,
    Annotations,
    learnable_terms,
)
from transformer_mt.data.batches import WeightedText
from transformer_mt.data.cache import entry, entry_name
from transformer_mt.data.corpus import (
    Corpus,
    Pair,
    Split,
    hold_out,
    open_corpus,
    training_filter,
    with_tags,
)
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.encoded import EncodedCorpus, Limits, PairChanges, encoded_corpus
from transformer_mt.data.facts import RARE, Facts, facts_of
from transformer_mt.data.spans import symbols_of
from transformer_mt.data.subword import TRAINING_LINES, Subwords
from transformer_mt.utils.console import say, warn
from transformer_mt.utils.errors import UsageError, UserError

# A new number makes existing entries of the cache unused.
FORMAT = 2
# Training makes no sense if more than this share of one side is unknown.
ALL_UNKNOWN = 0.95


class DevSet(NamedTuple):
    """A text that validations measure: its encoded pairs for the loss, and its lines to
    translate."""

    encoded: EncodedCorpus
    split: Split


@dataclass(frozen=True)
class PreparedData:
    """Everything that training and scoring read.

    Attributes:
        dev, dev_split, test_split: None if there is no such set.
        held_out_files: the files of pairs that were held out of the training text.
        alignments: None if none were asked for.
        facts: what `data.facts.facts_of` returns.
        texts: how many pairs each training text has, and how often they are read.
        general_dev: the text of data.general_dev.
        general_test_split: that of data.general_test.
    """

    subwords: Subwords
    train: EncodedCorpus
    dev: EncodedCorpus | None
    dev_split: Split | None
    test_split: Split | None
    held_out_files: list[Path]
    alignments: Alignments | None = None
    facts: Facts = field(default_factory=dict)
    texts: tuple[WeightedText, ...] = ()
    general_dev: DevSet | None = None
    general_test_split: Split | None = None

    @property
    def dev_sets(self) -> dict[str, DevSet]:
        """What validations measure, by the kind of their lines in metrics.jsonl. The first one, the
        dev set, decides which checkpoint is the best; without it, nothing is validated."""
        if self.dev is None or self.dev_split is None:
            return {}
        general = {} if self.general_dev is None else {"general_dev": self.general_dev}
        return {"dev": DevSet(self.dev, self.dev_split), **general}

    @property
    def key(self) -> str:
        """A hash of everything that training reads: text, subwords, filters and alignments."""
        return (self.train if self.alignments is None else self.alignments).key

    def with_held_out_in(self, folder: Path) -> PreparedData:
        """Returns the same data, but reads held-out pairs from the copies of their files in
        `folder`."""

        def moved(split: Split | None) -> Split | None:
            if split is None or split.paths[0] not in self.held_out_files:
                return split
            return replace(split, parts=(tuple(folder / path.name for path in split.paths),))

        dev, test, general_test = map(
            moved, (self.dev_split, self.test_split, self.general_test_split)
        )
        general_dev = self.general_dev
        if general_dev is not None:
            general_dev = general_dev._replace(split=moved(general_dev.split))
        splits = (dev, test, general_dev and general_dev.split, general_test)
        moved_files = {own.name: list(map(str, own.named_files)) for own in splits if own}
        files = self.facts["files"] | moved_files
        return replace(
            self,
            dev_split=dev,
            test_split=test,
            general_dev=general_dev,
            general_test_split=general_test,
            facts=self.facts | {"files": files},
        )

    def report(self) -> Iterator[str]:
        """Yields lines of text that describe what training reads."""
        facts = self.facts
        yield f"training pairs  {facts['pairs']:,}"
        if len(facts["texts"]) > 1 or any(len(text) > 2 for text in facts["texts"]):
            for text in facts["texts"]:
                weight = f", weight {text['weight']:g}" if "weight" in text else ""
                tag = f", tag {text['tag']}" if "tag" in text else ""
                reverse = ", reversed" * ("reverse" in text) + ", general" * ("general" in text)
                yield f"  {text['text']:13} {text['pairs']:,}{weight}{tag}{reverse}"
        for reason, dropped in facts["dropped"].items():
            yield f"  left out      {dropped['count']:,}: {reason}"
        if unmatched := facts["unmatched"]["count"]:
            yield f"  unmatched     {unmatched:,}: tags or placeholders of the sides differ"
        if copies := facts["copies"]["count"]:
            yield f"  copies        {copies:,}: the target is the same text as the source"
        sizes, rare, total = [], [], 0
        for name in ("source", "target"):
            side = facts[name]
            unit = "characters" if side["words"] is None else "words"
            yield (
                f"{name} subwords {side['subwords']:,} ({side['mean']:.1f} per sentence, "
                f"{side['subwords'] / max(1, side[unit]):.2f} per {unit[:-1]}, "
                f"longest {side['longest']})"
            )
            total += side["subwords"]
            sizes.append(f"{side['vocabulary']:,} {name}")
            rare.append(f"{side['rare']:.1%} {name}")
        if self.subwords.joint:
            sizes = [f"{facts['source']['vocabulary']:,} (joint)"]
            rare = [f"{facts['source']['rare']:.1%}"]
        yield f"  unknown       {facts['unknown']:,} ({facts['unknown'] / max(1, total):.3%})"
        yield f"vocabulary      {', '.join(sizes)}"
        yield f"  rare          {', '.join(rare)}; these occur less than {RARE} times"
        if self.alignments is not None:
            counts = self.alignments.facts
            unlinked = counts["unlinked"] / len(self.train.target.ids)
            yield (
                f"alignments      {counts['lines']:,} lines, {counts['links']:,} links of words; "
                f"{unlinked:.1%} of the target subwords have none"
            )
        for name in ("dev", "test", "general_dev", "general_test"):
            if facts.get(name):
                label = f"{name} pairs" if len(name) < 5 else name.replace("_", " ")
                yield label.ljust(16) + f"{facts[name]:,}"


def prepare(
    config: Config, subwords: Subwords | None = None, alignments: Path | None = None
) -> PreparedData:
    """Reads, checks and encodes the corpus of a config. Only the cache is written.

    Args:
        subwords: those of the model that training starts from, with the symbols of the config. If
            None, they are trained.
        alignments: a file of word alignments of the training text, in Pharaoh's format.

    Raises:
        UserError: something is wrong with the data.
    """
    data, cache = config.data, Path(config.data.cache)
    corpus = open_corpus(data)
    say(f"training text   {', '.join(map(str, corpus.train.named_files))}")
    _check(corpus)
    held_out = hold_out(corpus, data, config.training.seed, cache)
    corpus = corpus._replace(**held_out.splits)  # the dev and test sets that the config lacks
    left_out = with_tags(held_out.texts, corpus.train)
    new_filter = partial(training_filter, left_out, data.drop_duplicates)

    hashes = sorted(hashlib.sha256(text.encode()).hexdigest() for text in held_out.texts)
    content = "\n".join([corpus.train.content(), str(data.drop_duplicates), *hashes])

    def used() -> Iterator[Pair]:
        reason_to_drop = new_filter()
        return (pair for pair in corpus.train if reason_to_drop(pair) is None)

    changes = changes_of(config)
    if data.annotate_terms:
        annotations = _annotations(config, content, used, cache)
        changes = replace(changes or PairChanges(), annotations=annotations)

    def pairs() -> Iterator[Pair]:
        if changes is None:
            return used()
        applied = map(changes.applied, used())
        return (pair for pair, is_matched in applied if changes.keeps(is_matched))

    if subwords is None:
        subwords = _subwords(config, content, pairs, cache, changes)
    if config.training.init_from is None and config.subword.type != "vocabulary":
        sizes = config.subword.vocabulary_sizes.items()
        for (key, size), vocabulary in zip(sizes, subwords.vocabularies, strict=True):
            if vocabulary.size < size:
                say(f"{key}: the text has {vocabulary.size:,} subwords, not {size:,}; using those")
    _check_tags(corpus.train, subwords)
    limits = Limits(data.max_length, data.max_length_ratio)
    title = "encoding the training text"
    train = encoded_corpus(
        corpus.train, content, subwords, limits, cache, title, new_filter(), changes
    )
    dev = _dev_set(corpus.dev, config, subwords, cache)
    general_dev = _dev_set(corpus.general_dev, config, subwords, cache)
    links = None
    if alignments is not None:
        languages = data.source_lang, data.target_lang
        links = encoded_alignments(alignments, train, subwords, languages, cache)
    facts = facts_of(corpus, train, subwords, limits, new_filter(), cache, changes)
    _require_known(facts)
    pairs_of_texts = [text["pairs"] for text in facts["texts"]]
    texts = tuple(map(WeightedText, pairs_of_texts, (text.weight for text in data.texts)))
    held_out_files = [path for split in held_out.splits.values() for path in split.paths]
    return PreparedData(
        subwords,
        train,
        dev and dev.encoded,
        corpus.dev,
        corpus.test,
        held_out_files,
        links,
        facts,
        texts,
        general_dev,
        corpus.general_test,
    )


def _dev_set(split: Split | None, config: Config, subwords: Subwords, cache: Path) -> DevSet | None:
    """Encodes a text that validations measure; None if there is none."""
    if split is None:
        return None
    # Its loss needs memory as training does, so very long pairs are left out. All others are used,
    # so that the loss means the same in every run.
    content, limits = f"whole {split.content()}", Limits(config.data.max_length)
    tag = config.decoding.tag
    if tag is not None:
        content += f" {tag}"
    changes = changes_of(config)
    changes = changes and changes.for_measuring()
    title = f"encoding the {split.name.replace('_', ' ')} set"
    tagged = split if tag is None else _tagged(split, tag, config.tags)
    encoded = encoded_corpus(tagged, content, subwords, limits, cache, title, changes=changes)
    _warn_of_long_pairs(split, encoded, subwords, config.data.max_length)
    return DevSet(encoded, split)


def changes_of(config: Config) -> PairChanges | None:
    """Returns what is changed in the pairs of a config, whatever their text, which may be another
    one than that of training; None if nothing is."""
    data = config.data
    if not data.protect and not data.input_noise:
        return None
    return PairChanges(
        tuple(data.protect), data.drop_unmatched, data.input_noise, tuple(config.tags)
    )


def _annotations(
    config: Config, content: str, pairs: Callable[[], Iterator[Pair]], cache: Path
) -> Annotations:
    """Returns what is annotated in the training text. Its terms are in the cache if it has them."""
    data = config.data
    languages = data.source_lang, data.target_lang

    def make(folder: Path) -> None:
        say("looking for words that belong together ...")
        terms = learnable_terms(pairs(), languages)
        if not terms:
            raise UserError(
                "data.annotate_terms: no words of the training text are found to belong together, "
                "since it is too short. Leave it out"
            )
        (folder / "terms.json").write_text(json.dumps(terms))

    made_from = content, languages, LEAST_LINES, LEAST_DICE
    folder = entry(cache / f"terms-{entry_name(FORMAT, *made_from)}", make)
    terms = json.loads((folder / "terms.json").read_text())
    pairs_of_words = tuple((source, target) for source, target in terms)
    return Annotations(data.annotate_terms, pairs_of_words, languages, tuple(config.tags))


def _tagged(pairs: Iterable[Pair], tag: str, known: Iterable[str]) -> Iterator[Pair]:
    """Yields pairs with a tag before each source that has none of those that are known, as a
    translation reads it."""
    own = tuple(f"{other} " for other in known)
    for source, target in pairs:
        is_untagged = source.strip() and not source.lstrip().startswith(own)
        yield (f"{tag} {source}" if is_untagged else source), target


def _check_tags(train: Split, subwords: Subwords) -> None:
    """Warns of tags that are not one subword. The subwords may be those of another model, or of a
    file."""
    source = subwords.source
    for tag in dict.fromkeys(text.tag for text in train.texts if text.tag is not None):
        ids = source.encode(tag)
        if source.unk in ids or len([i for i in ids if i != source.space]) > 1:
            warn(
                f"data.train: the tag {tag} is not one of the subwords, so the model reads it as "
                "unknown, or in parts"
            )


def _require_known(facts: Facts) -> None:
    """
    Raises:
        UserError: there is nothing to learn, because nearly all of one side is unknown.
    """
    for side, unknown in facts["unknown_text"]["train"].items():
        if unknown["share"] > ALL_UNKNOWN:
            raise UserError(
                f"data.train: {unknown['share']:.0%} of the subwords of the {side} are unknown, "
                f"such as {', '.join(unknown['examples'])}. The vocabulary is one of other text: "
                "check subword.vocabulary or training.init_from"
            )


def _warn_of_long_pairs(
    split: Split, dev: EncodedCorpus, subwords: Subwords, max_length: int
) -> None:
    """Warns of each pair of a dev set that is too long for its loss."""
    if not dev.facts["dropped"]:
        return
    used = set(dev.lines.tolist())
    for line, pair in enumerate(split.pairs()):
        if line not in used:
            source, target = subwords.source.encode(pair[0]), subwords.target.encode(pair[1])
            warn(
                f"data.{split.name}: line {line + 1} has {len(source):,} subwords, and its target "
                f"{len(target):,}. The loss of the dev set leaves out pairs of more than "
                f"{max_length:,} (data.max_length), but BLEU counts them. Perhaps a line end is "
                "missing",
                kind="pairs of the dev set are left out of its loss",
            )


def _check(corpus: Corpus) -> None:
    """Reads the dev and test sets to their ends, because training may read them only at its end.
    Warns of sets whose scores mean little.

    Raises:
        UserError: a line is not UTF-8, or not a pair.
    """
    names = {corpus.train.content(): "train"}
    for split in filter(None, corpus[1:]):
        for side, text in zip(("source", "target"), split.text, strict=True):
            if not any(map(str.strip, text)):
                warn(f"data.{split.name}: all lines of the {side} are blank")
        same = names.setdefault(split.content(), split.name)
        if same != split.name:
            uses = {"train": "trained on", "dev": "used to choose the best checkpoint"}
            use = uses.get(same)
            warn(
                f"data.{split.name} is the same text as data.{same}"
                + (
                    f", which is {use}: its scores are higher than those of other text"
                    if use
                    else ""
                )
            )


def _subwords(
    config: Config,
    content: str,
    pairs: Callable[[], Iterator[Pair]],
    cache: Path,
    changes: PairChanges | None,
) -> Subwords:
    """Returns the subwords of the training text, from the cache if it has them."""
    settings = config.subword
    if settings.type == "marian":
        raise UsageError(
            "subword.type: marian: such subwords are those of an imported model, and can't be "
            "trained. Give that model in training.init_from"
        )
    if settings.type == "vocabulary":
        path = settings.vocabulary or DATASETS[config.data.dataset].vocabulary(config.data.root)
        return Subwords.from_vocabulary(Path(path))

    def make(folder: Path) -> None:
        say(f"training the {settings.type} subword model ...")
        Subwords.train(pairs, settings, symbols_of(config.data)).save(folder)

    # Sampling happens later and does not change the model.
    made_from = [content, settings.model_dump(exclude={"sampling"}), TRAINING_LINES[settings.type]]
    made_from += [repr(changes)] if changes else []
    return Subwords.load(entry(cache / f"subword-{entry_name(FORMAT, *made_from)}", make))
