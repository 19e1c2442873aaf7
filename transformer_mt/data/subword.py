"""The subwords of both sides of a model: trains SentencePiece models on the training text, or reads
the vocabulary that BPE'd text comes with, and keeps them in the model directory."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import sentencepiece

from transformer_mt.config.section import is_symbol
from transformer_mt.config.text import SPECIAL, SubwordConfig
from transformer_mt.data.marian_vocabulary import MarianVocabulary, PieceIds
from transformer_mt.data.normalization import RULES, trainer_options
from transformer_mt.data.vocabulary import (
    SentencePieceVocabulary,
    Vocabulary,
    WordVocabulary,
    model_proto,
)
from transformer_mt.utils import signals
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import byte_lines, lines, write_atomically

# In bytes. SentencePiece silently skips longer sentences; its own default is 4,192.
LONGEST_SENTENCE = 1 << 20
# The subwords of a larger corpus are trained on a sample of this many lines, to limit the memory.
# With 160 characters per line, as in news, BPE takes 1.2 GB, which grows with the number of
# different words, and unigram takes 1.1 GB, about 26 bytes per character.
TRAINING_LINES = {"bpe": 500_000, "unigram": 250_000, "char": 500_000, "word": 500_000}

# The names of the files of both sides together, and of each.
JOINT, SIDES = "subword", ("subword.source", "subword.target")
A_MODEL = "a SentencePiece model"

T = TypeVar("T")


class Subwords:
    """The vocabularies of both sides, which may be the same object.

    Attributes:
        joint: whether an id is the same subword on both sides, so that these can share embeddings.
            The vocabularies of an imported model may have the same ids and split text differently.
    """

    def __init__(self, source: Vocabulary, target: Vocabulary) -> None:
        self.source = source
        self.target = target
        self.joint = source is target or (
            isinstance(source, MarianVocabulary)
            and isinstance(target, MarianVocabulary)
            and source.ids == target.ids
        )

    @property
    def vocabularies(self) -> tuple[Vocabulary, ...]:
        """The vocabulary of both sides, or that of the source and that of the target."""
        return (self.source,) if self.source is self.target else (self.source, self.target)

    def with_symbols(self, symbols: Sequence[str]) -> Subwords:
        """Returns subwords that have some strings as symbols on both sides, and those of this
        object with the same ids.

        Raises:
            UsageError: a string is a special subword.
        """
        own = [vocabulary.with_symbols(symbols) for vocabulary in self.vocabularies]
        return Subwords(own[0], own[-1])

    def save(self, folder: Path) -> None:
        """Writes the subword model of a model directory, which `load` reads."""
        source, target = self.source, self.target
        if isinstance(source, MarianVocabulary) and isinstance(target, MarianVocabulary):
            sides = source, target
            files = {f"{name}.model": side.model for name, side in zip(SIDES, sides, strict=True)}
            numbered = [(JOINT, source)] if self.joint else zip(SIDES, sides, strict=True)
            files |= {f"{name}.json": side.ids.content() for name, side in numbered}
        else:
            kind = "txt" if isinstance(source, WordVocabulary) else "model"
            names = [JOINT] if source is target else SIDES
            named = zip(names, self.vocabularies, strict=True)
            files = {f"{name}.{kind}": vocabulary.content() for name, vocabulary in named}
        for name, content in files.items():
            write_atomically(folder / name, content)

    @classmethod
    def load(cls, folder: Path) -> Subwords:
        """Reads the files that `save` wrote.

        Raises:
            UserError: the folder has no subword model, or a damaged one.
        """
        if (folder / "subword.txt").is_file():
            tokens = list(lines(folder / "subword.txt"))
            vocabulary = WordVocabulary(tokens)
            # `save` writes every type once, including the special tokens.
            if vocabulary.size != len(tokens) or len(set(tokens)) != len(tokens):
                raise UserError(f"{folder / 'subword.txt'}: damaged; it is not as it was written")
            return cls(vocabulary, vocabulary)
        if numbered := [name for name in (JOINT, *SIDES) if (folder / f"{name}.json").is_file()]:
            if numbered not in ([JOINT], [*SIDES]):
                names = ", ".join(f"{name}.json" for name in numbered)
                raise UserError(
                    f"{folder}: expected the ids of both sides in {JOINT}.json, or those of each "
                    f"in {SIDES[0]}.json and {SIDES[1]}.json; it has {names}"
                )
            ids = [
                _load(folder / f"{name}.json", "a list of subwords", PieceIds.read)
                for name in numbered
            ]
            sides = [
                _load(folder / f"{name}.model", A_MODEL, partial(MarianVocabulary, ids=its))
                for name, its in zip(SIDES, (ids[0], ids[-1]), strict=True)
            ]
            return cls(*sides)
        for written in ((JOINT,), SIDES):
            paths = [folder / f"{name}.model" for name in written]
            if all(path.is_file() for path in paths):
                models = [_load(path, A_MODEL, SentencePieceVocabulary) for path in paths]
                return cls(models[0], models[-1])
        raise UserError(f"{folder}: there is no subword model (subword.model) in it")

    @classmethod
    def from_vocabulary(cls, path: Path) -> Subwords:
        """Reads the vocabulary of BPE'd text, a file with one type per line.

        Raises:
            UsageError: there is no such file.
            UserError: it has no type, or one more than once.
        """
        # Some files have counts behind a tab or a space, begin with a byte order mark, or end in
        # empty lines.
        text = b"\n".join(byte_lines(path)).decode("utf-8-sig", errors="replace").rstrip(" \t\n")
        if not text:
            raise UserError(f"{path}: there is no type in it")
        tokens = [re.split("[\t ]", line)[0] for line in text.split("\n")]
        token, count = Counter(tokens).most_common(1)[0]
        if count > 1:
            raise UserError(f"{path}: the type {token!r} is in it more than once")
        vocabulary = WordVocabulary(tokens)
        return cls(vocabulary, vocabulary)

    @classmethod
    def train(
        cls,
        pairs: Callable[[], Iterator[tuple[str, str]]],
        config: SubwordConfig,
        symbols: Sequence[str] = (),
    ) -> Subwords:
        """Trains SentencePiece models. Each call of `pairs` must read the text from its start.

        Args:
            symbols: strings that are one subword each, besides those of the config.

        Raises:
            UsageError: the vocabulary is too small for the characters of the text.
        """
        texts = [(text for pair in pairs() for text in pair)]
        if not config.joint:
            texts = [(source for source, _ in pairs()), (target for _, target in pairs())]
        sizes = zip(texts, config.vocabulary_sizes.items(), strict=True)
        symbols = [*config.user_symbols, *symbols]
        models = [_train(text, config, size, key, symbols) for text, (key, size) in sizes]
        return cls(models[0], models[-1])

    def content(self) -> bytes:
        return self.source.content() + b"\0" + self.target.content()


def read_symbols(path: Path) -> list[str]:
    """Reads strings for `subword.user_symbols` from a file with one of them a line. Blank lines are
    left out.

    Raises:
        UsageError: there is no such file.
        UserError: it has no symbol, or a line is none, a special subword or a repetition; the
            message names all such lines.
    """
    found: dict[str, int] = {}
    problems = []
    for number, line in enumerate(lines(path), 1):
        text = line.removeprefix("\ufeff").strip(" \r")
        if not text:
            continue
        if not is_symbol(text):
            reason = "has a space or another character that no symbol can have"
        elif text in SPECIAL:
            reason = "is a special subword already"
        elif text in found:
            reason = f"is in line {found[text]} already"
        else:
            found[text] = number
            continue
        problems.append(f"line {number}: {text!r} {reason}")
    if problems:
        listed = "\n  ".join(problems)
        raise UserError(f"{path}: expected one symbol a line, such as <name>:\n  {listed}")
    if not found:
        raise UserError(f"{path}: there is no symbol in it. Give one a line, such as <name>")
    return list(found)


def _load(path: Path, kind: str, read: Callable[[bytes], T]) -> T:
    """Returns read(content of a file).

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        return read(path.read_bytes())
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"{path}: not {kind}: {error}") from None


def _train(
    text: Iterator[str], config: SubwordConfig, size: int, key: str, symbols: Sequence[str]
) -> SentencePieceVocabulary:
    """Trains a SentencePiece model. The same text and config give the same model.

    Args:
        size: the size of the vocabulary. It becomes smaller if the text has fewer subwords.
        key: the key of the config that sets the size.
        symbols: strings that are one subword each.
    """
    first_line = next(text, None)
    if first_line is None:
        raise UserError("there is no training pair with text on both sides")
    failures: list[BaseException] = []

    def sentences() -> Iterator[str]:
        # SentencePiece replaces any exception of its input, even Ctrl-C, with one of its own.
        try:
            yield first_line
            yield from text
        except GeneratorExit:
            raise
        except BaseException as error:
            failures.append(error)

    model = io.BytesIO()
    problem = None
    try:
        with signals.undisguised(), trainer_options(config.normalization) as normalization:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences(),
                model_writer=model,
                model_type=config.type,
                vocab_size=size,
                character_coverage=config.character_coverage,
                **normalization,
                # Every space is kept, so that decoding restores the text.
                remove_extra_whitespaces=False,
                # A corpus too small for the size gets as many subwords as it has.
                hard_vocab_limit=False,
                pad_id=0,
                unk_id=1,
                bos_id=2,
                eos_id=3,
                unk_surface="\u2047",
                user_defined_symbols=symbols,
                input_sentence_size=TRAINING_LINES[config.type],
                shuffle_input_sentence=True,
                max_sentence_length=LONGEST_SENTENCE,
                minloglevel=2,
            )
    except (RuntimeError, SystemError) as error:
        problem = str(error)
    if failures:
        raise failures[0]
    if problem:
        needed = re.search(r"(\d+) vs (\d+)", problem)
        if "required_chars" in problem and needed:
            raise UsageError(
                f"{key}: {size}: the text has {needed[2]} different characters and special "
                "subwords, which the vocabulary must hold. Raise it, or lower "
                "subword.character_coverage"
            )
        raise UserError(f"SentencePiece could not be trained: {problem}")
    content = model.getvalue()
    if config.normalization in RULES:
        proto = model_proto(content)
        proto.normalizer_spec.name = config.normalization
        proto.normalizer_spec.ClearField("normalization_rule_tsv")  # the temporary file
        content = proto.SerializeToString()
    return SentencePieceVocabulary(content)
