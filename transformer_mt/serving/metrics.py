"""What the service counts, for Prometheus. Nothing of it holds text of a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from transformer_mt.serving.models import ServedModel

# Otherwise, each counter has a second value: the time when it was made.
disable_created_metrics()
CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of a service. Any thread may use them."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        of_requests = ["endpoint", "status"]
        self._requests = self._made(Counter, "requests", "Answered requests.", of_requests)
        self._seconds = self._made(
            Histogram,
            "request_seconds",
            "Seconds from the header of a request to its answer.",
            ["endpoint"],
            buckets=SECONDS,
        )
        self._lines = self._made(Counter, "lines", "Translated lines.", ["model"])
        self._batches = self._made(
            Histogram,
            "batch_sentences",
            "Sentences that were translated together.",
            ["model"],
            buckets=SENTENCES,
        )
        ProcessCollector(registry=self._registry)

    def _made(self, kind, name: str, help: str, labels: list[str], **options):
        return kind(f"transformer_mt_{name}", help, labels, registry=self._registry, **options)

    def watch(self, models: Mapping[str, ServedModel]) -> None:
        """From now on, also tells what these models are doing."""
        for name in models:  # so that they are there from the start, with 0
            self._lines.labels(name)
            self._batches.labels(name)
        self._registry.register(_States(models))

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Counts an answered request."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)

    def lines(self, model: str, count: int) -> None:
        """Counts translated lines."""
        self._lines.labels(model).inc(count)

    def batch(self, model: str, sentences: int) -> None:
        """Counts a batch that a worker of a model has computed."""
        self._batches.labels(model).observe(sentences)

    def text(self) -> bytes:
        """All values, in Prometheus' text format."""
        return generate_latest(self._registry)


class _States(Collector):
    """What the models are doing at the moment when somebody asks."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "transformer_mt_waiting_sentences", "Sentences that wait for a model.", labels=["model"]
        )
        ready = GaugeMetricFamily(
            "transformer_mt_model_ready", "1 if a model can translate, else 0.", labels=["model"]
        )
        crashes = CounterMetricFamily(
            "transformer_mt_worker_crashes",
            "Processes of a model that ended unasked.",
            labels=["model"],
        )
        for name, model in self._models.items():
            waiting.add_metric([name], model.waiting)
            ready.add_metric([name], model.is_ready)
            crashes.add_metric([name], model.workers.crashes)
        yield from (waiting, ready, crashes)
