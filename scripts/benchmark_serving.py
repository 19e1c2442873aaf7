"""How many requests the service answers, and how fast, with and without dynamic batching.

    .venv/bin/python scripts/benchmark_serving.py MODEL_DIR --source FILE > out.md

MODEL_DIR holds a trained model, FILE is text to translate. `serve` runs in a process of its own,
with Paddle and, if its package is installed, with CTranslate2. Clients ask it line by line over
connections that stay open: each sends a line, waits for the answer, and sends the next one. Every
answer is compared with what the command `translate` writes for the line. The rows take turns, so
that the state of the machine affects all alike. Results go to stdout as Markdown, progress to
stderr. With the defaults the benchmark takes about 15 minutes.

How to read the results

The clients run on the same machine as the service. "Batching" is the service's default; without
it, `--max-batch 1` translates each sentence alone. A latency is the time from sending a request to
having read its answer, in milliseconds; the percentiles are of all requests of all rounds. Requests
per second are medians over the rounds (minimum–maximum). "Times one client" is the ratio to one
client with batching, in the same round. "Wrong" counts answers that are missing or differ from
`translate`.
"""

from __future__ import annotations

import argparse
import http.client
import time
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks import harness, service
from benchmarks.harness import read_lines, say, spread
from benchmarks.service import Service

PERCENTILES = {50: "50 %", 95: "95 %", 99: "99 %"}
HEADER = ["clients", "batching", "requests/s", "times one client", *PERCENTILES.values(), "wrong"]


class Round:
    """What some clients measured in a while.

    Attributes:
        latencies: the seconds of each request that was answered rightly.
        wrong: the number of the others.
    """

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.wrong = 0
        self.seconds = 0.0

    @property
    def speed(self) -> float:
        return len(self.latencies) / self.seconds


def ask_for(running: Service, clients: int, seconds: float, pairs: list[tuple[str, str]]) -> Round:
    """Lets clients ask line by line for some seconds.

    Args:
        pairs: lines and their translations.
    """
    found, begun = Round(), time.perf_counter()

    def client(number: int) -> None:
        connection = running.connect()
        at = number * len(pairs) // clients
        while time.perf_counter() < begun + seconds:
            source, expected = pairs[at % len(pairs)]
            at, asked = at + 1, time.perf_counter()
            try:
                status, answer = running.ask(connection, text=source)
                is_right = status == 200 and answer["text"] == expected
            except (OSError, http.client.HTTPException):
                is_right, connection = False, running.connect()
            if is_right:
                found.latencies.append(time.perf_counter() - asked)
            else:
                found.wrong += 1
        connection.close()

    service.together(clients, client)
    found.seconds = time.perf_counter() - begun
    return found


def measure(options: argparse.Namespace, folder: Path) -> Iterator[str]:
    for path in (options.model_dir / "config.yaml", options.source):
        if not path.is_file():
            raise harness.WrongArguments(f"{path}: there is no such file")
    lines = [line for line in read_lines(options.source) if line.strip()][: options.lines]
    (folder / "source").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    engines = {"Paddle": options.model_dir.resolve()}
    packages = ["paddlepaddle"]
    if find_spec("ctranslate2"):
        engines["CTranslate2"] = folder / "ctranslate2"
        export = ["--format", "ctranslate2", "--output", engines["CTranslate2"]]
        harness.program("export", options.model_dir.resolve(), *export)
        packages.append("ctranslate2")
    yield f"{harness.machine(*packages)} {len(lines):,} lines, mean of {mean_words(lines)} words."
    for name, model in engines.items():
        output = folder / f"{name}.output"
        harness.program("translate", model, "--input", folder / "source", "--output", output)
        pairs = list(zip(lines, read_lines(output), strict=True))
        yield f"### {name}"
        yield harness.table(HEADER, list(rows(options, folder, model, pairs)))


def rows(
    options: argparse.Namespace, folder: Path, model: Path, pairs: list[tuple[str, str]]
) -> Iterator[list[str]]:
    rounds: dict[tuple[int, str], list[Round]] = defaultdict(list)
    with (
        service.serving(folder / "batching.log", model) as batching,
        service.serving(folder / "alone.log", model, "--max-batch", 1) as alone,
    ):
        services = {"yes": batching, "no": alone}
        for running in services.values():
            ask_for(running, 4, 2, pairs)  # memory is reserved, caches are filled
        for number in range(options.rounds):
            for clients in options.clients:
                for kind, running in services.items():
                    found = ask_for(running, clients, options.seconds, pairs)
                    rounds[clients, kind].append(found)
                    say(f"round {number + 1}, {clients}, {kind}: {found.speed:.1f} requests/s")
    base = rounds[options.clients[0], "yes"]
    for (clients, kind), its in rounds.items():
        speed = spread([one.speed for one in its], ".1f")
        ratios = [one.speed / other.speed for one, other in zip(its, base, strict=True)]
        latencies = 1000 * np.concatenate([one.latencies for one in its])
        yield [
            str(clients),
            kind,
            speed,
            spread(ratios, ".2f"),
            *(f"{value:,.0f}" for value in np.percentile(latencies, list(PERCENTILES))),
            f"{sum(one.wrong for one in its):,}",
        ]


def mean_words(lines: list[str]) -> str:
    return f"{sum(len(line.split()) for line in lines) / len(lines):.1f}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_dir", metavar="MODEL_DIR", type=Path)
    parser.add_argument("--source", metavar="FILE", type=Path, required=True, help="text")
    number = {"metavar": "N", "type": harness.positive(int)}
    parser.add_argument("--lines", **number, default=1000, help="its first N lines (1000)")
    parser.add_argument("--rounds", **number, default=3, help="turns of each row (3)")
    parser.add_argument("--seconds", **number, default=15, help="of each turn (15)")
    parser.add_argument(
        "--clients", **number, nargs="+", default=[1, 4, 16, 64], help="at once (1 4 16 64)"
    )


if __name__ == "__main__":
    harness.run(__doc__, add_arguments, measure)
