"""A service in this process whose models need no training: their translations are known."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from transformer_mt.data.languages import sentences
from transformer_mt.decoding.output import LinePart, Output, Translation
from transformer_mt.serving.app import Access, Metrics, Service
from transformer_mt.serving.batching import Limits, Overloaded, Ticket
from transformer_mt.serving.models import Card, CardLimits
from transformer_mt.serving.server import Server, address, bind
from transformer_mt.utils.errors import UsageError

N_BEST = 4


class StandIn:
    """Has the interface of ServedModel. Its translation of a line is the words in capitals and in
    reverse order; the further outputs end in a number.

    Attributes:
        held: events by a word; a request with this word waits for the event.
        began: is set when a request waits.
        busy: the number of requests that are still refused as too many.
    """

    is_ready = True
    waiting = 0

    def __init__(self, name: str, source_lang: str, target_lang: str) -> None:
        self.name = name
        self.card = Card(
            name=name,
            source_lang=source_lang,
            target_lang=target_lang,
            engine="paddle",
            parameters=11_345_408,
            data="words, 29,000 pairs",
            pairs=29_000,
            test={"score": 39.1, "interval": 1.6},
            n_best=N_BEST,
            alignment=True,
            attention=True,
            limits=CardLimits.of(Limits()),
        )
        self.held: dict[str, threading.Event] = {}
        self.began = threading.Event()
        self.busy = 0

    def translate(
        self,
        lines: list[str],
        ticket: Ticket,
        *,
        n_best: int | None = None,
        beam_size: int | None = None,
        alignment: bool = False,
        warn: object = None,
    ) -> list[Translation]:
        if self.busy:
            self.busy -= 1
            raise Overloaded("too many sentences wait. Try again later")
        if any("TOOLONG" in line for line in lines):
            raise UsageError("the text has 60,000 subwords; a request may have 50,000")
        for word, event in self.held.items():
            if any(word in line for line in lines):
                self.began.set()
                event.wait(60)
        return [self._translation(line, n_best or 1, alignment) for line in lines]

    def parts(self, lines: list[str]) -> list[list[LinePart]]:
        return [
            [
                LinePart(start, end, line[start:end], " " if number else "")
                for number, (start, end) in enumerate(sentences(line, self.card.source_lang))
            ]
            for line in lines
        ]

    def attention_page(self, source: str, target: str, ticket: Ticket) -> str:
        return f"<!doctype html><title>map of {source} and {target}</title>"

    def _translation(self, line: str, n_best: int, alignment: bool) -> Translation:
        places = [match.span() for match in re.finditer(r"\S+", line)]
        words = [line[slice(*place)].upper() for place in reversed(places)]
        outputs = []
        for number in range(n_best if words else 1):
            text = " ".join([*words, str(number)] if number else words)
            output = Output(text, -0.3 - number / 4, -1.0, text.split())
            if alignment:
                links = [(i, len(places) - 1 - i) for i in range(len(places))]
                found = [match.span() for match in re.finditer(r"\S+", text)]
                output = Output(text, output.score, -1.0, output.pieces, links, found)
            outputs.append(output)
        return Translation(line, line.split(), outputs, places if alignment else None)


class RunningService:
    """A service that can be stopped and started again at the same address."""

    def __init__(self, models: list[StandIn], token: str | None) -> None:
        self.token = token
        self._models = {model.name: model for model in models}
        self._port = 0
        self.start()

    def start(self) -> None:
        listening = bind("127.0.0.1", self._port)
        self._port = listening.getsockname()[1]
        self.url = f"{address(listening)}/"
        metrics = Metrics()
        service = Service(self._models, Limits(), Access(token=self.token), metrics)
        self._server = Server(service, timeout=60)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()

    def stop(self) -> None:
        """Ends at once, with all connections."""
        self._server.should_exit = self._server.force_exit = True
        self._thread.join()


@contextmanager
def serving(models: list[StandIn], token: str | None = None) -> Iterator[RunningService]:
    service = RunningService(models, token)
    try:
        yield service
    finally:
        for model in models:
            for event in model.held.values():
                event.set()
        service.stop()
