"""Whether the service stays whole for a long time among clients of every kind.

    .venv/bin/python scripts/soak_serving.py MODEL_DIR --source FILE --minutes 30 > out.md

MODEL_DIR is a model directory or an export, FILE is text to translate. Honest clients translate
lines and compare every answer with that of the command `translate`. At the same time others hang up
in the middle, send garbage, send lines of 1 MB, send their body one byte at a time, or ask for what
is not there; and now and then a process that translates is killed. The memory of all processes and
the threads of the service are noted each minute.

The exit code is 0 only if every honest answer was right, no answer had the status 500, and at the
end no process or connection was left of the clients that are gone. Of the threads, only those may
be left that the service keeps for later requests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import harness, service
from benchmarks.harness import Failure, read_lines, say
from benchmarks.service import Service

# How many clients of each kind there are.
HONEST = 4
# The number of seconds between two kills of a process that translates.
KILL_EVERY = 300
# The threads for requests stay when they were needed once.
POOL = 40


class Soak:
    """The clients, and what they have seen.

    Attributes:
        statuses: how often each status was answered, per kind of client.
        wrong: honest answers that were not those of `translate`.
    """

    def __init__(self, running: Service, pairs: list[tuple[str, str]], until: float) -> None:
        self.running, self.pairs, self.until = running, pairs, until
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        kinds: list[Callable[[random.Random], None]] = [
            *[self.honest] * HONEST,
            self.hangs_up,
            self.sends_garbage,
            self.sends_a_long_line,
            self.is_slow,
            self.asks_for_what_is_not_there,
        ]
        service.together(len(kinds), lambda number: self._repeat(kinds[number], number))

    def _repeat(self, kind: Callable[[random.Random], None], seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < self.until:
            try:
                kind(dice)
            except OSError:
                self.statuses[kind.__name__, 0] += 1  # the connection was closed
            time.sleep(0.01)

    def honest(self, dice: random.Random) -> None:
        chosen = dice.sample(self.pairs, dice.choice([1, 1, 1, 5, 50]))
        connection = self.running.connect()
        try:
            status, answer = self.running.ask(connection, text=[source for source, _ in chosen])
        finally:
            connection.close()
        self.statuses["honest", status] += 1
        if status == 200:
            got = [translation["text"] for translation in answer["translations"]]
            if got != [expected for _, expected in chosen]:
                self.wrong.append(f"{chosen[0][0]!r}: {got[0]!r}")
        elif status not in (429, 503):
            self.wrong.append(f"status {status}: {answer}")

    def hangs_up(self, dice: random.Random) -> None:
        lines = [source for source, _ in dice.sample(self.pairs, min(100, len(self.pairs)))]
        raw = self._request(json.dumps({"text": lines}).encode())
        with self._connected() as connection:
            connection.sendall(raw[: dice.choice([1, 20, len(raw) // 2, len(raw), len(raw)])])
            time.sleep(dice.random() / 2)

    def sends_garbage(self, dice: random.Random) -> None:
        raws = [
            dice.randbytes(dice.randrange(1, 5000)),
            self._request(dice.randbytes(100)),
            self._request(b"[" * 50_000),
            self._request(b'{"text": 1e999}'),
            self._request(b'{"text": "a", "n_best": 99999999999999999999}'),
            self._request(b'{"text": "\\ud800", "alignment": true}'),
            b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
            b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ]
        self._send("sends_garbage", dice.choice(raws))

    def sends_a_long_line(self, dice: random.Random) -> None:
        size = dice.choice([1_000_000, 1_000_000, 3_000_000])
        letters = dice.choice(["a", "word ", "\u4e2d", "\u0301", "\x00"])
        text = (letters * (size // len(letters)))[: size // len(letters[0].encode())]
        body = json.dumps({"text": text}, ensure_ascii=False).encode()
        self._send("sends_a_long_line", self._request(body))
        time.sleep(2)

    def is_slow(self, dice: random.Random) -> None:
        raw = self._request(json.dumps({"text": "x" * 1000}).encode())
        with self._connected(60) as connection:
            head = dice.choice([10, raw.index(b"\r\n\r\n") + 4])
            connection.sendall(raw[:head])
            for byte in raw[head : head + 300]:
                connection.sendall(bytes([byte]))
                time.sleep(0.1)
            self._count("is_slow", connection)

    def asks_for_what_is_not_there(self, dice: random.Random) -> None:
        path = dice.choice(
            ["/", "/nothing", "/models", "/metrics", "/attention/x", "/../etc/passwd"]
        )
        raw = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        self._send("asks_for_what_is_not_there", raw.encode())

    # ---- Raw requests ----

    def _request(self, body: bytes) -> bytes:
        head = (
            "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def _connected(self, timeout: float = 120) -> socket.socket:
        address = (self.running.host, self.running.port)
        return socket.create_connection(address, timeout)

    def _send(self, kind: str, raw: bytes) -> None:
        with self._connected() as connection:
            connection.sendall(raw)
            self._count(kind, connection)

    def _count(self, kind: str, connection: socket.socket) -> None:
        """Counts the status of the answer; 0 if the connection was closed without one."""
        answer = connection.recv(100).split(b" ")
        self.statuses[kind, int(answer[1]) if len(answer) > 1 else 0] += 1


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    if not options.source.is_file():
        raise harness.WrongArguments(f"{options.source}: there is no such file")
    model, output = options.model_dir.resolve(), folder / "output"
    lines = [line for line in read_lines(options.source) if line.strip()]
    (folder / "source").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    harness.program("translate", model, "--input", folder / "source", "--output", output)
    pairs = list(zip(lines, read_lines(output), strict=True))
    with service.serving(folder / "log", model, "--max-waiting", 300) as running:
        time.sleep(2)
        idle = running.threads(), len(running.processes()), connections(running)
        soak = Soak(running, pairs, time.monotonic() + 60 * options.minutes)
        clients = threading.Thread(target=soak.run)
        clients.start()
        minutes = list(watch(running, clients, options.minutes))
        time.sleep(15)  # the time that a slow header has
        left = running.threads(), len(running.processes()), connections(running)
        status, _ = running.ask(running.connect(), text=lines[0])
        log = running.log()
    yield harness.machine("uvicorn", "fastapi")
    yield harness.table(["minute", "MB", "threads", "open connections"], minutes)
    answered: dict[str, list[str]] = defaultdict(list)
    for (kind, code), count in sorted(soak.statuses.items()):
        answered[kind].append(f"{code or 'closed'}: {count:,}")
    yield harness.table(["clients", "answers"], [[k, ", ".join(v)] for k, v in answered.items()])
    yield (
        f"Threads, processes and open connections before: {idle}, after: {left}. "
        f"Honest answers that were wrong: {len(soak.wrong)}."
    )
    problems = soak.wrong[:5]
    problems += [f"status 500 for {kind}" for kind, code in soak.statuses if code == 500]
    problems += ["a traceback in the log"] * ("Traceback" in log)
    problems += ["the service does not answer at the end"] * (status != 200)
    if left[0] > idle[0] + POOL or left[1] != idle[1] or left[2] > idle[2]:
        problems.append(f"threads, processes, connections: {idle} before, {left} after")
    if problems:
        raise Failure("; ".join(problems))


def watch(running: Service, clients: threading.Thread, minutes: int) -> Iterator[list[str]]:
    """Yields a row of the table each minute, and kills a worker process now and then."""
    begun = time.monotonic()
    killed = begun
    for minute in range(minutes + 1):
        while clients.is_alive() and time.monotonic() < begun + 60 * minute:
            time.sleep(0.5)
        row = [f"{running.memory():,.0f}", str(running.threads()), str(connections(running))]
        say(f"minute {minute}: {' '.join(row)}")
        yield [str(minute), *row]
        if time.monotonic() > killed + KILL_EVERY and clients.is_alive():
            killed = time.monotonic()
            os.kill(running.processes()[-1], signal.SIGKILL)
    clients.join()


def connections(running: Service) -> int:
    """The number of sockets that the service has open."""
    targets = []
    for path in Path(f"/proc/{running.process.pid}/fd").iterdir():
        try:
            targets.append(os.readlink(path))
        except OSError:
            continue
    return sum(target.startswith("socket:") for target in targets)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_dir", metavar="MODEL_DIR", type=Path)
    parser.add_argument("--source", metavar="FILE", type=Path, required=True, help="text")
    number = {"metavar": "N", "type": harness.positive(int)}
    parser.add_argument("--minutes", **number, default=30, help="how long (30)")


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)
