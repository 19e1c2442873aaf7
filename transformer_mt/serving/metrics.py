"""What the service counts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from transformer_mt.serving.models import ServedModel

# Otherwise, each counter has a second value: the time when it was made.
disable_created_metrics()
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """What the service counts, for Prometheus: requests by endpoint and status, their seconds by
    endpoint, lines and batches by model, and requests and lines by user. It also tells what the
    models are doing at the moment when somebody asks. Nothing of it holds text of a request. Any
    thread may use it."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"namespace": "transformer_mt", "registry": self.registry}
        text = "Requests that are being answered."
        self.in_progress = Gauge("requests_in_progress", text, **own)
        text = "Answered requests."
        self.requests = Counter("requests", text, ["endpoint", "status"], **own)
        text = "Seconds from the header of a request to its answer."
        self.seconds = Histogram("request_seconds", text, ["endpoint"], buckets=_SECONDS, **own)
        self.lines = Counter("lines", "Translated lines.", ["model"], **own)
        text = "Requests of a user who has a token of a file."
        self.user_requests = Counter("user_requests", text, ["user"], **own)
        text = "Translated lines of a user who has a token of a file."
        self.user_lines = Counter("user_lines", text, ["user"], **own)
        text = "Sentences that were translated together."
        batches = Histogram("batch_sentences", text, ["model"], buckets=_SENTENCES, **own)
        waiting = Gauge("waiting_sentences", "Sentences that wait for a model.", ["model"], **own)
        ready = Gauge("model_ready", "1 if a model can translate, else 0.", ["model"], **own)
        text = "Processes of a model that ended unasked."
        crashes = Gauge("worker_crashes_total", text, ["model"], **own)
        ProcessCollector(registry=self.registry)
        for name, model in models.items():
            self.lines.labels(name)  # so that it is there from the start, with 0
            model.workers.computed = batches.labels(name).observe
            waiting.labels(name).set_function(partial(getattr, model.queue, "waiting"))
            ready.labels(name).set_function(partial(getattr, model.workers, "is_ready"))
            crashes.labels(name).set_function(partial(getattr, model.workers, "crashes"))
