"""A service that is measured: `serve` in a process of its own, and clients of it."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Failure, tail

# The number of seconds that the service may take to load its models.
LOADING = 300


class Service:
    """A running service on this machine.

    Attributes:
        host, port: where it listens.
        process: the process that listens; the models are in its children.
    """

    host = "127.0.0.1"

    def __init__(self, process: subprocess.Popen, port: int, log: Path) -> None:
        self.process, self.port, self._log = process, port, log

    def connect(self, timeout: float = 120) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def ask(self, connection: http.client.HTTPConnection, **question: Any) -> tuple[int, dict]:
        """The status and the answer of POST /translate."""
        body = json.dumps(question)
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())

    def processes(self) -> list[int]:
        """The service and all processes below it."""
        found = [self.process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, children.read_text().split())
        return found

    def memory(self) -> float:
        """The memory that the processes use, in MB; what several share is counted once."""
        texts = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in self.processes())
        return sum(int(re.search(r"^Pss: *(\d+)", text, re.M)[1]) for text in texts) / 1024

    def threads(self) -> int:
        """The number of threads of the process that listens."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def log(self) -> str:
        """What the service has printed."""
        return self._log.read_text("utf-8", "replace")


@contextmanager
def serving(log: Path, *arguments: object) -> Iterator[Service]:
    """Starts `serve` with these arguments on a free port, and stops it at the end of the block.

    Args:
        log: the file for what it prints.

    Raises:
        Failure: it does not start, or does not end when it is asked to.
    """
    command = [sys.executable, "-m", "transformer_mt", "serve", *map(str, arguments), "--port", "0"]
    with open(log, "w") as stderr:
        process = subprocess.Popen(command, cwd=ROOT, stderr=stderr, stdout=stderr)
    try:
        deadline = time.monotonic() + LOADING
        while not (match := re.search(r"http://[\d.]+:(\d+)", log.read_text("utf-8", "replace"))):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"the service does not start: {tail(log)}")
            time.sleep(0.05)
        yield Service(process, int(match[1]), log)
        process.send_signal(signal.SIGTERM)
        if process.wait(120) != 0:
            raise Failure(f"the service has ended with {process.returncode}: {tail(log)}")
    finally:
        process.kill()
        process.wait()


def together(count: int, function: Any) -> None:
    """Calls function(number) in `count` threads, and waits for all of them."""
    threads = [threading.Thread(target=function, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
