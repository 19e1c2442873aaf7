"""A served model that computes nothing, and a service with it that answers over HTTP."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest

from transformer_mt.decoding.output import LinePart
from transformer_mt.serving import server
from transformer_mt.serving.app import Access, Metrics, Service
from transformer_mt.serving.batching import Late, Limits, Overloaded, Ticket, WorkerLost
from transformer_mt.serving.models import Card, CardLimits
from transformer_mt.utils.errors import UsageError

SECRET = "a text that nobody may see"


class StandIn:
    """Translates a line by reversing its words. Lines in capitals make it do other things: see
    `_obey`."""

    def __init__(self, name: str = "demo") -> None:
        self.name = name
        self.is_ready = True
        self.waiting = 0
        self.workers = SimpleNamespace(crashes=0)
        self.began = threading.Semaphore(0)  # one for each WAIT
        self.go_on = threading.Event()
        self.cancelled = 0
        self.card = Card(
            name=name,
            source_lang="en",
            target_lang="de",
            engine="none",
            parameters=1,
            data=None,
            pairs=None,
            test={"metric": "BLEU", "score": 39.1, "interval": None},
            n_best=5,
            alignment=True,
            attention=True,
            limits=CardLimits.of(Limits()),
        )

    def translate(self, lines, ticket, *, n_best=None, beam_size=None, alignment=False, warn=None):
        for line in lines:
            if line == "ODD":
                warn("line 1: odd", "lines are odd")
            self._obey(line, ticket)
        return [self._translation(line, n_best or 1, alignment) for line in lines]

    def parts(self, lines):
        return [[LinePart(0, len(line), line, "")] for line in lines]

    def attention_page(self, source: str, target: str, ticket: Ticket) -> str:
        return f"<!doctype html><title>{source} - {target}</title><script>1</script>"

    def _obey(self, line: str, ticket: Ticket) -> None:
        if line == "WAIT":
            self.began.release()
            while not self.go_on.wait(0.01):
                if ticket.is_cancelled:
                    self.cancelled += 1
                    ticket.result(ticket.future())  # raises Cancelled
        elif line == "OVERLOADED":
            error = Overloaded("2,000 sentences are waiting already")
            error.retry_after = 7
            raise error
        elif line == "LATE":
            raise Late("the translation took too long")
        elif line == "LOST":
            raise WorkerLost("the process died")
        elif line == "WRONG":
            raise UsageError("n_best: 99: expected a number from 1 to 20")
        elif line == "BUG":
            raise ZeroDivisionError(SECRET)

    def _translation(self, line: str, n_best: int, alignment: bool) -> SimpleNamespace:
        words = line.split(" ")[::-1]
        outputs = []
        for number in range(n_best):
            text = " ".join(words) + "!" * number
            links = [(i, len(words) - 1 - i) for i in range(len(words))]
            outputs.append(
                SimpleNamespace(
                    text=text,
                    score=-1.23456 - number,
                    alignment=links if alignment else None,
                    words=places(text) if alignment else None,
                    parts=[(0, len(text))],
                )
            )
        return SimpleNamespace(
            text=outputs[0].text,
            outputs=outputs,
            source_words=places(line) if alignment else None,
            source_parts=[(0, len(line))],
        )


def places(text: str) -> list[tuple[int, int]]:
    found, start = [], 0
    for word in text.split(" "):
        found.append((start, start + len(word)))
        start += len(word) + 1
    return found


class Running:
    """A service that is running: its models, and a client for it.

    Attributes:
        said: the lines that it printed.
    """

    def __init__(self, models, port: int, metrics: Metrics, said: list[str]) -> None:
        self.models = models
        self.model = models[0]
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.metrics = metrics
        self.said = said
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=30)

    def translate(self, text, **values) -> httpx.Response:
        return self.client.post("/translate", json={"text": text, **values})

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


def wait_for(condition, seconds: float = 30) -> None:
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
    limits = limits or Limits()
    said: list[str] = []
    metrics = Metrics()
    by_name = {model.name: model for model in models}
    service = Service(by_name, limits, access or Access(), metrics, log_text=log_text)
    with pytest.MonkeyPatch.context() as patch, server.bind("127.0.0.1", 0) as listening:
        for module in ("app", "requests", "server"):
            patch.setattr(f"transformer_mt.serving.{module}.say", said.append)
        port = listening.getsockname()[1]
        uvicorn = server.Server(service, limits.timeout)
        thread = threading.Thread(target=uvicorn.run, args=([listening],))
        thread.start()
        wait_for(lambda: uvicorn.started)
        run = Running(models, port, metrics, said)
        run.server = uvicorn
        run.thread = thread
        try:
            with run.client:
                yield run
        finally:
            for model in models:
                model.go_on.set()
            uvicorn.should_exit = True
            thread.join(60)
            assert not thread.is_alive()
