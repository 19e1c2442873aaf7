"""The models that the service translates with."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.config.file import with_changes
from transformer_mt.data.terms import Term
from transformer_mt.decoding.documents import protected_in_documents
from transformer_mt.decoding.engine import BATCH_TOKENS
from transformer_mt.decoding.line_reader import Warn
from transformer_mt.decoding.output import Line, LinePart, Translation
from transformer_mt.export import registry
from transformer_mt.export.registry import EngineSpec
from transformer_mt.model.costs import VocabularySizes, parts
from transformer_mt.reports import attention, card
from transformer_mt.reports.card import Score
from transformer_mt.serving.batching import Limits, Queue, Ticket
from transformer_mt.serving.workers import Workers
from transformer_mt.translator import Translator
from transformer_mt.utils.console import progress
from transformer_mt.utils.errors import UsageError

# The widest beam that a client may ask for.
WIDEST_BEAM = 20
# SentencePiece takes seconds for a line of ten thousands of characters without a space, and nothing
# else can run then. So characters are counted before subwords are.
LONGEST_LINE = 10_000
CHARACTERS_PER_SUBWORD = 4
# The subwords of a sentence whose attention maps are drawn. Their size is the square of it, and
# nobody can read larger ones.
MOST_IN_MAPS = 100


class CardLimits(BaseModel):
    """The most that a request may have: lines, characters of a line and of all lines, subwords, and
    bytes of its body."""

    lines: int
    line_characters: int
    characters: int
    subwords: int
    body: int

    @classmethod
    def of(cls, limits: Limits) -> CardLimits:
        return cls(
            lines=limits.max_lines,
            line_characters=LONGEST_LINE,
            characters=CHARACTERS_PER_SUBWORD * limits.max_subwords,
            subwords=limits.max_subwords,
            body=limits.max_body,
        )


class Card(BaseModel):
    """What a model is and can do.

    `n_best` is the number of alternatives that cost no extra time: the width of its beam. `terms`
    tells whether requests may give the translations of terms.
    """

    name: str
    source_lang: str
    target_lang: str
    engine: str
    parameters: int
    data: str | None
    pairs: int | None
    test: Score | None
    n_best: int
    alignment: bool
    attention: bool
    terms: bool
    limits: CardLimits


class ServedModel:
    """A model, its queue and its workers."""

    def __init__(self, name: str, spec: EngineSpec, limits: Limits) -> None:
        self.name = name
        self._spec = spec
        self._limits = CardLimits.of(limits)
        # The workers hold the GPU, if there is one; this process knows nothing of its memory.
        batch_tokens = spec.config.decoding.batch_tokens or BATCH_TOKENS
        self.queue = Queue(limits, batch_tokens, spec.threads if spec.device == "cpu" else 1)
        self.workers = Workers(name, spec, self.queue, limits.timeout)
        # Each sentence is a work of its own, which the queue puts into batches.
        self._decoding = with_changes(spec.config.decoding, {"batch_tokens": 1})
        self._translator = Translator(spec, partial(self.queue.run, Ticket()))
        # Equal requests get the same object, which is quick to compare.
        self._settings = cache(self._settings_of)

    def start(self) -> None:
        """Starts the workers, and tries the model.

        Raises:
            UserError: the model can't be loaded.
        """
        self.workers.start()
        self._translator.warm_up(1)
        self.card = self._card()

    def translate(
        self,
        lines: list[str],
        ticket: Ticket,
        n_best: int | None = None,
        beam_size: int | None = None,
        alignment: bool = False,
        warn: Warn = lambda message, kind: None,
        in_document: bool = False,
        protect: tuple[str, ...] = (),
        terms: list[Term] | None = None,
    ) -> list[Translation]:
        """The translation of each line. It is that of the command `translate`. Several threads may
        call this.

        Args:
            n_best: the number of different outputs to look for per line (default: 1).
            beam_size: the width of the beam (default: the model's, or n_best if that is more).
            alignment: whether outputs get their alignment.
            warn: is called with what is wrong with a line, as the command warns of it.
            terms: those whose translations are given.
            in_document: whether the lines are those of a document, whose markup is protected.
            protect: regular expressions of what is protected too, if the lines are plain text.

        Raises:
            UsageError: the model can't do this, or a number is too large.
            Unavailable: the service can't answer now, or the ticket was cancelled.
        """
        self._require_short(lines)
        widest = max(WIDEST_BEAM, self._decoding.beam_size)
        for key, value in (("n_best", n_best), ("beam_size", beam_size)):
            if value is not None and not 1 <= value <= widest:
                raise UsageError(f"{key}: {value}: expected a number from 1 to {widest}")
        settings = self._settings(
            n_best, beam_size, alignment, in_document, protect, terms is not None
        )
        run = partial(self.queue.run, ticket)
        translator = self._translator.with_settings(settings, run, warn, terms)
        window = [Line(text) for text in lines]
        return list(translator.stream([window], need_alignment=alignment))

    def parts(self, lines: list[str]) -> list[list[LinePart]]:
        """The parts of each line that are translated one by one.

        Raises:
            UsageError: there are too many characters.
        """
        self._require_short(lines)
        return [self._translator.parts(line) for line in lines]

    def attention_page(self, source: str, target: str, ticket: Ticket) -> str:
        """The page of the attention maps of a sentence and its translation, as HTML.

        Raises: as `translate`.
        """
        if not self.card.attention:
            raise UsageError(f"{self.name} does not give the weights of every layer and head")
        self._require_short([source, target])
        sides = []
        for key, text, vocabulary in (
            ("source", source, self._spec.subwords.source),
            ("target", target, self._spec.subwords.target),
        ):
            ids = vocabulary.encode(text.encode("utf-8", "replace").decode("utf-8"))
            most = min(MOST_IN_MAPS, self._spec.config.data.max_length)
            if not 0 < len(ids) <= most:
                raise UsageError(
                    f"{key}: {len(ids)} subwords; attention maps need one sentence, of 1 to {most}"
                )
            sides.append(attention.Side(key.capitalize(), text, ids))
        # Drawn in a worker process, which gives the engine.
        work = partial(attention.draw, self._spec, source=sides[0], target=sides[1])
        (page,) = self.queue.run(ticket, iter([work]))
        return page

    # ---- Limits, settings and card ----

    def _require_short(self, lines: list[str]) -> None:
        """
        Raises:
            UsageError: there are too many characters.
        """
        limits = self._limits
        characters = sum(map(len, lines))
        if characters > limits.characters:
            raise UsageError(
                f"the text has {characters:,} characters; a request may have "
                f"{limits.characters:,}. Send it in several requests"
            )
        for number, line in enumerate(lines, 1):
            if len(line) > limits.line_characters:
                raise UsageError(
                    f"line {number} has {len(line):,} characters; a line may have "
                    f"{limits.line_characters:,}. Cut it at the end of a sentence"
                )

    def _settings_of(
        self,
        n_best: int | None,
        beam_size: int | None,
        alignment: bool,
        in_document: bool = False,
        protect: tuple[str, ...] = (),
        terms: bool = False,
    ) -> DecodingConfig:
        n_best = n_best or 1
        beam_size = beam_size or max(n_best, self._decoding.beam_size)
        changes: dict[str, Any] = {"n_best": n_best, "beam_size": beam_size}
        if in_document:
            changes["protect"] = protected_in_documents(self._spec.config)
        elif protect:
            own = self._decoding.protect
            known = self._spec.config.data.protect if own is None else own
            changes["protect"] = [*known, *protect]
        settings = with_changes(self._decoding, changes)
        asked = ["alignment"] * alignment + ["terms"] * terms
        registry.require_possible(self._spec, settings, asked)
        return settings

    def _card(self) -> Card:
        spec = self._spec
        data, subwords = spec.config.data, spec.subwords
        if spec.checkpoints:
            training = card.of_training(spec.folder, spec.checkpoints[0].name)
        else:
            training = card.of_export(spec.folder)
        model_parts = parts(spec.config.model, VocabularySizes.of(subwords))
        described = [training.dataset] if training.dataset else []
        if training.pairs is not None:
            described.append(f"{training.pairs:,} pairs")
        return Card(
            name=self.name,
            source_lang=data.source_lang,
            target_lang=data.target_lang,
            engine=spec.backend.title,
            parameters=sum(part.parameters for part in model_parts),
            data=", ".join(described) or None,
            pairs=training.pairs,
            test=training.test,
            n_best=self._decoding.beam_size if self._can(n_best=2) else 1,
            alignment=self._can(alignment=True),
            attention=bool(spec.checkpoints) and spec.config.model.non_autoregressive is None,
            terms=self._can(terms=True),
            limits=self._limits,
        )

    def _can(self, n_best: int = 1, alignment: bool = False, terms: bool = False) -> bool:
        """Whether the model can translate so."""
        try:
            self._settings(n_best, n_best, alignment, terms=terms)
        except UsageError:
            return False
        return True


@contextmanager
def serving(
    folders: Iterable[str],
    limits: Limits,
    *,
    engine: str | None = None,
    threads: int = 1,
    device: str | None = None,
    tag: str | None = None,
) -> Iterator[dict[str, ServedModel]]:
    """Loads models, and yields them by their names until the end of the block.

    Args:
        folders: model directories and exports, each as MODEL_DIR or MODEL_DIR:CHECKPOINT.
        engine, threads, device: as in `registry.find`.
        tag: takes the place of each model's `decoding.tag`, unless it is None.

    Raises:
        UsageError: there is no such model, or it does not know the tag.
        UserError: a model can't be loaded.
    """
    specs = []
    for text in folders:
        folder, checkpoint = registry.split_model(text)
        spec = registry.find(folder, engine, checkpoint, (), threads, device)
        decoding = spec.config.decoding
        if decoding.sampling or tag is not None:
            spec = registry.with_decoding(spec, {"sampling": False, "tag": tag or decoding.tag})
        specs.append((registry.model_name(Path(folder), checkpoint), spec))
    models: dict[str, ServedModel] = {}
    with ExitStack() as stack, progress(total=len(specs), title="loading", unit="models") as bar:
        for name, spec in specs:
            names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
            unique = next(free for free in names if free not in models)
            models[unique] = ServedModel(unique, spec, limits)
            stack.callback(models[unique].workers.close)
            models[unique].start()
            bar.update()
        bar.close()
        yield models
