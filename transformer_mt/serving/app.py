"""The endpoints of the service, as an ASGI application.

FastAPI reads and checks the requests, and describes them. Starlette checks the Host header and the
origins of pages. What stands in front of both here is the token, the size of a request, headers
that make answers safe in a browser, the log and the metrics.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastapi_offline
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.security import HTTPBearer
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transformer_mt import __version__
from transformer_mt.serving import requests
from transformer_mt.serving.batching import (
    Cancelled,
    ClientGone,
    Limits,
    Overloaded,
    Threads,
    Ticket,
    Unavailable,
)
from transformer_mt.serving.models import Card, ServedModel
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError, UserError

if TYPE_CHECKING:
    from transformer_mt.serving.models import ServedModel


PAGE = Path(__file__).with_name("page")
SWAGGER = Path(fastapi_offline.__file__).with_name("static")
DESCRIPTION = """\
Translates text. Requests and answers are JSON in UTF-8. An answer with a status from 400 on is
`{"detail": TEXT}`, and the text says what is wrong and what to do."""
# The bytes of the pages of attention maps that are kept, and for how many seconds.
KEPT_BYTES = 1 << 26
KEPT_SECONDS = 600
# The page of attention maps has its script and its style inside. `sandbox` takes it away from this
# service's origin, so that nothing in it could use the token.
ATTENTION_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
ATTENTION_POLICY += "img-src data:; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
# An answer that has one of these headers already keeps it.
SAFE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# The status of requests whose client has gone, in the log and the metrics. Nobody receives it.
CLIENT_GONE = 499
LONGEST = 100  # characters of a path or a method, in the log
# The paths that need no token: what they give is in every installation of this program, tells only
# whether the service runs, or has a random name. In the log, /attention/ has no name.
_OPEN = {"/": "page", "/docs": "docs", "/openapi.json": "docs", "/health": "/health"}
_OPEN |= {f"/{path.name}": "page" for path in PAGE.iterdir()}
_OPEN |= {f"/docs/{path.name}": "docs" for path in SWAGGER.iterdir()}
_ASKING = ("/translate", "/parts", "/attention")


class ModelsAnswer(BaseModel):
    models: list[Card]


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        hosts: the names that a request may give the service in its Host header; "*" stands for all.
            A site can give its own name the address of this machine, and its pages then count as
            the service's (DNS rebinding), unless the names are limited.
        origins: the origins of other pages that may ask, such as https://example.com.
        token: the secret that requests must have, or None.
    """

    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    origins: tuple[str, ...] = ()
    token: str | None = None


class Service:
    """The ASGI application.

    Args:
        models: the models by their names.
        log_text: whether the text of requests is printed too.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        limits: Limits,
        access: Access,
        metrics: Metrics,
        *,
        log_text: bool = False,
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._max_lines = limits.max_lines
        self._log_text = log_text
        self._threads = Threads(limits.timeout)
        self._pages: dict[str, tuple[bytes, float]] = {}  # and when they were made; oldest first
        self._app = FastAPI(
            title="transformer_mt",
            version=__version__,
            description=DESCRIPTION,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            # Generators of clients name their functions so.
            generate_unique_id_function=lambda route: route.name.strip("_"),
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=access.hosts, www_redirect=False),
                Middleware(
                    CORSMiddleware,
                    allow_origins=access.origins,
                    allow_methods=["GET", "POST"],
                    allow_headers=["Authorization", "Content-Type"],
                    expose_headers=["Retry-After"],
                ),
                Middleware(_Guard, token=access.token, max_body=limits.max_body),
            ],
        )
        for kind in (RequestValidationError, HTTPException, Exception):
            self._app.add_exception_handler(kind, _answer_to)
        for kind in (UserError, Cancelled, ClientGone):
            self._app.add_exception_handler(kind, _answer_to)
        self._add_endpoints(HTTPBearer(auto_error=False) if access.token else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, counts it, and writes its line into the log."""
        started, status = time.monotonic(), 0
        headers = Headers(scope=scope)

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                answer = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    answer.setdefault(name, value)
                if "transfer-encoding" in headers and "content-length" in headers:
                    # A proxy in front may see another end of the request, and so another request
                    # after it (RFC 9112, section 6.1).
                    answer["Connection"] = "close"
            await send(message)

        scope.setdefault("state", {})
        method = scope["method"]
        if method == "HEAD":  # the server leaves out the body
            scope = {**scope, "method": "GET"}
        with self._metrics.in_progress.track_inprogress():
            try:
                await self._app(scope, receive, send_safely)
            except (Exception, asyncio.CancelledError) as error:
                # Starlette raises again what it answered; a service that stops cancels the rest.
                if not status:
                    await _answer_to(None, error)(scope, receive, send_safely)
        seconds = time.monotonic() - started
        self._metrics.request(endpoint_of(scope["path"]), status, seconds)
        self._log(scope, method, status, seconds)

    def give_up(self) -> None:
        """Ends the work for all requests, which are answered with 503."""
        self._threads.cancel()

    def _log(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        client = (scope.get("client") or ("-",))[0]
        path = scope["raw_path"].decode("ascii", "replace")  # %0A stays as it is
        if path.startswith("/attention/"):
            path = endpoint_of(path)
        method, path = (
            text if len(text) <= LONGEST else f"{text[:LONGEST]}..." for text in (method, path)
        )
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {client} {method} {path} {status}"
        line += f" {1000 * seconds:.0f} ms"
        if (count := scope["state"].get("lines")) is not None:
            line += f" {count} line{'' if count == 1 else 's'}"
        if self._log_text and "text" in scope["state"]:
            line += f" {json.dumps(scope['state']['text'], ensure_ascii=False)}"
        say(line)

    # ---- Endpoints ----

    async def _translate(self, query: requests.TranslateQuery, request: Request) -> Response:
        model = self._model(query.model)
        lines, ends = self._lines(query, request)
        warnings: list[str] = []

        def translate(ticket: Ticket) -> str:
            found = model.translate(
                lines,
                ticket,
                n_best=query.n_best,
                beam_size=query.beam_size,
                alignment=query.alignment,
                warn=lambda message, kind: warnings.append(message),
            )
            answer = requests.answer(query, model.name, ends, found, warnings)
            return answer.model_dump_json(exclude_none=True)

        answer = await self._threads.run(request.receive, translate)
        self._metrics.lines(model.name, len(lines))
        return _json(answer)

    async def _parts(self, query: requests.PartsQuery, request: Request) -> Response:
        model = self._model(query.model)
        lines, _ = self._lines(query, request)

        def cut(ticket: Ticket) -> str:
            parts = [[part._asdict() for part in own] for own in model.parts(lines)]
            return requests.PartsAnswer.model_validate({"parts": parts}).model_dump_json()

        return _json(await self._threads.run(request.receive, cut))

    async def _attention(self, query: requests.AttentionQuery, request: Request) -> Response:
        model = self._model(query.model)
        request.state.lines = 1
        request.state.text = [query.source, query.target]
        page = await self._threads.run(
            request.receive,
            lambda ticket: model.attention_page(query.source, query.target, ticket).encode(),
        )
        self._forget_pages(room=len(page))
        name = secrets.token_urlsafe(16)
        self._pages[name] = page, time.monotonic()
        return _json(requests.AttentionAnswer(url=f"/attention/{name}").model_dump_json())

    async def _attention_page(self, name: str) -> Response:
        self._forget_pages()
        if name not in self._pages:
            raise HTTPException(
                404,
                f"this page is gone: pages are kept for {KEPT_SECONDS // 60} minutes. Ask for it "
                "again",
            )
        headers = {
            "Content-Security-Policy": ATTENTION_POLICY,
            # A browser may refuse to show a page that has both `sandbox` and another value of this.
            "Cross-Origin-Opener-Policy": "unsafe-none",
        }
        return HTMLResponse(self._pages[name][0], headers=headers)

    async def _get_models(self) -> Response:
        cards = ModelsAnswer(models=[model.card for model in self._models.values()])
        return _json(cards.model_dump_json())

    async def _health(self) -> Response:
        is_ready = all(model.is_ready for model in self._models.values())
        answer = requests.HealthAnswer(status="ok" if is_ready else "loading")
        headers = {} if is_ready else {"Retry-After": "5"}
        return _json(answer.model_dump_json(), 200 if is_ready else 503, headers)

    async def _get_metrics(self) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def _model(self, name: str | None) -> ServedModel:
        names = ", ".join(self._models)
        if name is None and len(self._models) > 1:
            raise HTTPException(422, f"model: missing. There are several: {names}")
        model = next(iter(self._models.values())) if name is None else self._models.get(name)
        if model is None:
            raise HTTPException(422, f"model: there is no model of this name. There are: {names}")
        return model

    def _lines(
        self, query: requests.TranslateQuery | requests.PartsQuery, request: Request
    ) -> tuple[list[str], list[str]]:
        """As `requests.split`. The request's line in the log will have the number of lines."""
        lines, ends = requests.split(query.text, self._max_lines)
        request.state.lines = len(lines)
        request.state.text = query.text
        return lines, ends

    def _forget_pages(self, room: int = 0) -> None:
        """Drops the attention pages that are too old, and the oldest to have room for so many
        bytes."""
        kept = room + sum(len(page) for page, _ in self._pages.values())
        for name, (page, made) in list(self._pages.items()):
            if kept <= KEPT_BYTES and time.monotonic() - made < KEPT_SECONDS:
                break
            kept -= len(page)
            del self._pages[name]

    # ---- Their registration ----

    def _add_endpoints(self, security: HTTPBearer | None) -> None:
        app = self._app
        with_token: dict[str, Any] = {"dependencies": [Depends(security)] if security else []}
        asking = [400, 413, 415, 422, 429, 503]
        app.post(
            "/translate",
            summary="Translate text",
            responses=requests.answers(requests.TranslateAnswer, asking, security),
            **with_token,
        )(self._translate)
        app.post(
            "/parts",
            summary="Find the sentences of lines, which are translated one by one",
            responses=requests.answers(requests.PartsAnswer, asking, security),
            **with_token,
        )(self._parts)
        app.post(
            "/attention",
            summary="Make a page of the attention maps of a sentence and its translation",
            responses=requests.answers(requests.AttentionAnswer, asking, security),
            **with_token,
        )(self._attention)
        app.get(
            "/attention/{name}",
            summary="A page that POST /attention has made",
            response_class=HTMLResponse,
            responses=requests.answers(None, [404]),
        )(self._attention_page)
        app.get(
            "/models",
            summary="What the models are, and what they offer",
            responses=requests.answers(ModelsAnswer, [], security),
            **with_token,
        )(self._get_models)
        app.get(
            "/health",
            summary="Whether every model can translate",
            responses=requests.answers(requests.HealthAnswer, [])
            | {503: {"model": requests.HealthAnswer, "description": "Not every model can."}},
        )(self._health)
        app.get(
            "/metrics",
            summary="Counters, in Prometheus' text format",
            response_class=PlainTextResponse,
            responses=requests.answers(None, [], security),
            **with_token,
        )(self._get_metrics)
        app.get("/docs", include_in_schema=False)(_docs_page())
        app.mount("/docs", _Files(directory=SWAGGER))
        page = _Files(directory=PAGE, html=True)
        for path in ("/", *(f"/{file.name}" for file in PAGE.iterdir())):
            app.router.routes.append(Route(path, page, methods=["GET"]))


class _Guard:
    """Refuses a request without the token (401), one that is not JSON (415), or one that is too
    large (413), before it is read."""

    def __init__(self, app: ASGIApp, token: str | None, max_body: int) -> None:
        self._app = app
        self._token = token
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
        except HTTPException as error:
            return await _answer_to(None, error)(scope, receive, send)
        left = self._max_body

        async def receive_limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise self._too_large()
            return message

        await self._app(scope, receive_limited, send)

    def _check(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        is_open = path in _OPEN or path.startswith("/attention/")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode(), (self._token or "").encode()
        )
        if self._token is not None and not is_open and not is_right:
            raise HTTPException(
                401,
                "this service needs a token: send the header `Authorization: Bearer TOKEN`",
                {"WWW-Authenticate": "Bearer"},
            )
        if scope["method"] == "POST" and path in _ASKING:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                detail = "expected JSON: send the header `Content-Type: application/json`"
                raise HTTPException(415, detail)
            length = headers.get("content-length", "0")
            if len(length) > 18 or int(length) > self._max_body:
                raise self._too_large()

    def _too_large(self) -> HTTPException:
        detail = f"the request is larger than {self._max_body:,} bytes. Send the text in several "
        return HTTPException(413, f"{detail}requests")


def endpoint_of(path: str) -> str:
    """What a path belongs to, in the metrics and the log. Neither may have a name of a page, which
    is a secret."""
    if path in _OPEN:
        return _OPEN[path]
    if path.startswith("/attention/"):
        return "/attention/{name}"
    return path if path in (*_ASKING, "/models", "/metrics") else "other"


class _Files(StaticFiles):
    """Files of pages. A browser asks each time whether they have changed."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _docs_page() -> Callable[[], Any]:
    """The page that shows the service's OpenAPI description. All its files come from here."""
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="transformer_mt",
        swagger_js_url="/docs/swagger-ui-bundle.js",
        swagger_css_url="/docs/swagger-ui.css",
        swagger_favicon_url="/docs/favicon.png",
        swagger_ui_parameters={"validatorUrl": None},
    )
    scripts = re.findall(r"<script>(.*?)</script>", bytes(page.body).decode(), re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    page.headers["Content-Security-Policy"] = (
        f"default-src 'self'; script-src 'self' {allowed}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    )

    async def docs() -> Response:
        return page

    return docs


# ---- Errors ----


def _answer_to(request: Request | None, error: BaseException) -> Response:
    """The answer to a request that raised an error: JSON, `{"detail": TEXT}`, whose text says what
    is wrong, where, and what to do.

    An error that nobody expected is reported on stderr, and answered with 503, because another try
    may succeed.
    """
    if isinstance(error, ClientGone):
        return Response(status_code=CLIENT_GONE)
    if isinstance(error, RequestValidationError):
        status, detail = requests.explained(request.url.path if request else "", error)
        return JSONResponse({"detail": detail}, status)
    if isinstance(error, HTTPException):
        return JSONResponse({"detail": _sentence(error)}, error.status_code, error.headers)
    if isinstance(error, UsageError):
        return JSONResponse({"detail": str(error)}, 422)
    status, detail, seconds = 503, "an internal error; the log names it", 5
    if isinstance(error, Unavailable):
        status, seconds = 429 if isinstance(error, Overloaded) else 503, error.retry_after
    if isinstance(error, UserError):
        detail = str(error)
    elif isinstance(error, Cancelled | asyncio.CancelledError):
        detail = "the service is stopping. Try again later"
    else:
        _report(error)
    return JSONResponse({"detail": detail}, status, {"Retry-After": str(seconds)})


def _sentence(error: HTTPException) -> str:
    """What Starlette and FastAPI say in two words ("Not Found"), in a sentence."""
    addresses = "/docs lists the addresses of the service and what they take"
    if error.detail == "Not Found":
        return f"there is nothing at this address. {addresses}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another one")
        return f"this address does not take this method, but {allowed}. {addresses}"
    if error.status_code == 400:
        return "the request is not JSON in UTF-8"
    return str(error.detail)


def _report(error: BaseException) -> None:
    """Prints where an error happened. Its message may hold text of a request, so that it is only
    printed for debugging."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {os.path.basename(p.filename)}, line {p.lineno}" for p in place)
    say(f"internal error: {type(error).__name__}{where}. TRANSFORMER_MT_DEBUG=1 shows more")
    if os.environ.get("TRANSFORMER_MT_DEBUG"):
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)


def _json(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, media_type="application/json")


# ---- Metrics. Nothing of them holds text of a request. ----

# Otherwise, each counter has a second value: the time when it was made.
disable_created_metrics()
CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of a service. Any thread may use them.

    Attributes:
        in_progress: the requests that are being answered.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.in_progress = Gauge(
            "transformer_mt_requests_in_progress",
            "Requests that are being answered.",
            registry=self._registry,
        )
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
