"""A service in this process whose models compute nothing: their translations are known."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import httpx
import pytest

from transformer_mt.data.spans import SpanFinder
from transformer_mt.data.terms import Term, Terms
from transformer_mt.decoding.checks import warnings_of
from transformer_mt.decoding.output import LinePart, Output, Translation
from transformer_mt.serving import server
from transformer_mt.serving.app import Service
from transformer_mt.serving.batching import Limits, Overloaded, Ticket, Unavailable, WorkerLost
from transformer_mt.serving.guard import Access
from transformer_mt.serving.models import Card, CardLimits
from transformer_mt.utils.errors import UsageError
from transformer_mt.utils.languages import sentences

SECRET = "a text that nobody may see"
# What is raised for a line with a word.
RAISED = {
    "OVERLOADED": Overloaded("2,000 sentences are waiting already"),
    "LATE": Unavailable("the translation took too long"),
    "LOST": WorkerLost("the process died"),
    "WRONG": UsageError("n_best: 99: expected a number from 1 to 20"),
    "TOOLONG": UsageError("the text has 60,000 subwords; a request may have 50,000"),
    "BUG": ZeroDivisionError(SECRET),
}
RAISED["OVERLOADED"].retry_after = 1
# A placeholder in small letters becomes another one.
FINDER = SpanFinder(["placeholders"])


class StandIn:
    """Has the interface of ServedModel. Its translation of a line is the words in capitals and in
    reverse order; the further outputs end in a number. A word that is a term has its translation,
    and nothing keeps one that is forbidden away.

    Attributes:
        held: events by a word; a request with this word waits for the event.
        began: is released for each request that waits.
        cancelled: the number of requests that were given up while they waited.
        busy: the number of requests that are still refused as too many.
    """

    def __init__(
        self, name: str = "demo", source_lang: str = "en", target_lang: str = "de"
    ) -> None:
        self.name = name
        self.busy = self.cancelled = 0
        self.queue = SimpleNamespace(waiting=0)
        self.workers = SimpleNamespace(is_ready=True, crashes=0)
        self.held: dict[str, threading.Event] = {}
        self.began = threading.Semaphore(0)
        self.card = Card(
            name=name,
            source_lang=source_lang,
            target_lang=target_lang,
            engine="paddle",
            parameters=11_345_408,
            data="words, 29,000 pairs",
            pairs=29_000,
            test={"score": 39.1, "interval": 1.6},
            n_best=4,
            alignment=True,
            attention=True,
            terms=True,
            limits=CardLimits.of(Limits()),
        )

    def translate(
        self,
        lines,
        ticket,
        n_best=None,
        beam_size=None,
        alignment=False,
        warn=None,
        in_document=False,
        protect=(),
        terms=None,
    ):
        if self.busy:
            self.busy -= 1
            raise RAISED["OVERLOADED"]
        if terms is not None and not self.card.terms:
            raise UsageError("terms: this engine can't write given terms")
        for line in lines:
            if line == "ODD":
                warn("line 1: odd", "lines are odd")
            for word, error in RAISED.items():
                if word in line:
                    raise error
            for word, event in self.held.items():
                if word in line:
                    self._wait(event, ticket)
        return [self._translation(line, n_best or 1, alignment, terms or []) for line in lines]

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

    def _wait(self, event: threading.Event, ticket: Ticket) -> None:
        self.began.release()
        while not event.wait(0.01):
            if ticket.is_cancelled:
                self.cancelled += 1
                raise WorkerLost("the request was given up")

    def _translation(
        self, line: str, n_best: int, alignment: bool, terms: list[Term]
    ) -> Translation:
        found = places(line)
        given = {term.source: term.forms[0] for term in terms if not term.is_forbidden}
        texts = [line[slice(*place)] for place in reversed(found)]
        words = [given.get(text, text.upper()) for text in texts]
        outputs = []
        for number in range(n_best if words else 1):
            text = " ".join([*words, str(number)] if number else words)
            links = [(i, len(found) - 1 - i) for i in range(len(found))] if alignment else None
            aligned = (links, places(text) if alignment else None, [(0, len(text))])
            outputs.append(Output(text, -0.3 - number / 4, -1.0, text.split(), *aligned))
        source_words = found if alignment else None
        check = partial(
            warnings_of,
            line,
            finder=FINDER,
            source_lang="en",
            target_lang="de",
            terms=Terms(terms, "en"),
        )
        way = "cutting" if FINDER.find(line) else None
        return Translation(line, line.split(), outputs, source_words, [(0, len(line))], way, check)


def places(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


class Running:
    """A service that is running, and a client for it. It can be stopped and started again at the
    same address.

    Attributes:
        said: the lines that it printed.
    """

    def __init__(self, models: tuple[StandIn, ...], said: list[str], limits: Limits, **options):
        self.models, self.said = {model.name: model for model in models}, said
        self.model = models[0]
        self._limits, self._options = limits, options
        self.port = 0
        self.start()
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=30)

    def start(self) -> None:
        listening = server.bind("127.0.0.1", self.port)
        self.port = listening.getsockname()[1]
        self.url = f"{server.address(listening)}/"
        service = Service(self.models, self._limits, **self._options)
        self.server = server.Server(service, self._limits.timeout)
        self.thread = threading.Thread(target=self.server.run, args=([listening],))
        self.thread.start()
        wait_for(lambda: self.server.started)

    def stop(self) -> None:
        """Ends at once, with all connections."""
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(60)
        assert not self.thread.is_alive()

    def translate(self, text: object, **values: object) -> httpx.Response:
        return self.client.post("/translate", json={"text": text, **values})

    def post(self, content, path="/translate", kind="application/json") -> httpx.Response:
        return self.client.post(path, content=content, headers={"Content-Type": kind})

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.settimeout(30)
        return connection

    def answers(self, request: bytes) -> bytes:
        """All that comes back for bytes that are sent, until the service closes the connection."""
        with self.connect() as connection:
            connection.sendall(request)
            return rest_of(connection)

    def log(self, count: int) -> list[str]:
        """The lines that were printed, as soon as there are so many."""
        wait_for(lambda: len(self.said) >= count)
        return self.said


def rest_of(connection: socket.socket) -> bytes:
    """What comes until the connection is closed, by whichever way."""
    received = b""
    try:
        while part := connection.recv(1 << 16):
            received += part
    except ConnectionResetError:
        pass
    return received


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    """Waits until something is the case."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@contextmanager
def running(
    *models: StandIn,
    limits: Limits | None = None,
    access: Access | None = None,
    log_text: bool = False,
) -> Iterator[Running]:
    """Serves models in a thread of this process."""
    models = models or (StandIn(),)
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in ("app", "requests", "server", "tokens"):
            patch.setattr(f"transformer_mt.serving.{module}.say", said.append)
        options = {"access": access or Access(), "log_text": log_text}
        service = Running(models, said, limits or Limits(), **options)
        try:
            with service.client:
                yield service
        finally:
            for model in models:
                for event in model.held.values():
                    event.set()
            service.stop()
