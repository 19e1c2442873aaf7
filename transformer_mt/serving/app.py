"""The endpoints of the service, as an ASGI application."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import Depends, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from transformer_mt import __version__
from transformer_mt.serving import requests
from transformer_mt.serving.batching import Cancelled, Ticket
from transformer_mt.serving.front import Endpoint, Front
from transformer_mt.serving.guards import Access, Bodies
from transformer_mt.serving.limits import Limits
from transformer_mt.serving.metrics import CONTENT_TYPE, Metrics
from transformer_mt.serving.models import Card, ServedModel
from transformer_mt.serving.refusals import ClientGone, Refusal, answer_to
from transformer_mt.serving.threads import Threads
from transformer_mt.utils.errors import UserError

PAGE = Path(__file__).with_name("page")
SWAGGER = Path(fastapi_offline.__file__).with_name("static")
DESCRIPTION = """\
Translates text. Requests and answers are JSON in UTF-8. An answer with a status from 400 on is
`{"detail": TEXT}`, and the text says what is wrong and what to do."""
# The bytes of the pages of attention maps that are kept, and for how many seconds.
KEPT_BYTES = 1 << 26
KEPT_SECONDS = 600
# An answer is written in pieces of so many bytes, each when the client has taken those before.
PIECE = 1 << 16
# The page of attention maps has its script and its style inside. `sandbox` takes it away from this
# service's origin, so that nothing in it could use the token.
ATTENTION_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
ATTENTION_POLICY += "img-src data:; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"


class _Page:
    """A page of attention maps. All downloads share its bytes."""

    def __init__(self, html: str) -> None:
        self.content = html.encode()
        self.made = time.monotonic()

    async def pieces(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.content), PIECE):
            yield self.content[start : start + PIECE]


class ModelsAnswer(BaseModel):
    models: list[Card]


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
        self._bodies = Bodies(limits.max_body)
        self._threads = Threads(limits.timeout)
        self._pages: dict[str, _Page] = {}  # by their names, the oldest first
        # Those in memory: a page that is kept no longer may still be on its way to a client.
        self._in_memory: weakref.WeakSet[_Page] = weakref.WeakSet()
        self._app = self._with_endpoints(HTTPBearer(auto_error=False) if access.token else None)
        self._front = Front(self._app, access, metrics, endpoint_of, log_text=log_text)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._front(scope, receive, send)

    def give_up(self) -> None:
        """Ends the work for all requests, which are answered with 503."""
        self._threads.cancel()

    # ---- Endpoints ----

    async def _translate(self, request: Request) -> Response:
        async with self._bodies.read(request.headers, request.receive) as body:
            query = requests.parse(requests.TranslateQuery, body, self._max_lines)
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

    async def _parts(self, request: Request) -> Response:
        async with self._bodies.read(request.headers, request.receive) as body:
            query = requests.parse(requests.PartsQuery, body, self._max_lines)
            model = self._model(query.model)
            lines, _ = self._lines(query, request)

            def cut(ticket: Ticket) -> str:
                parts = [[part._asdict() for part in own] for own in model.parts(lines)]
                return requests.PartsAnswer.model_validate({"parts": parts}).model_dump_json()

            return _json(await self._threads.run(request.receive, cut))

    async def _attention(self, request: Request) -> Response:
        async with self._bodies.read(request.headers, request.receive) as body:
            query = requests.parse(requests.AttentionQuery, body, self._max_lines)
            model = self._model(query.model)
            request.state.lines = 1
            request.state.text = [query.source, query.target]
            page = await self._threads.run(
                request.receive,
                lambda ticket: model.attention_page(query.source, query.target, ticket),
            )
            name = secrets.token_urlsafe(16)
            self._keep(name, _Page(page))
        return _json(requests.AttentionAnswer(url=f"/attention/{name}").model_dump_json())

    async def _attention_page(self, request: Request) -> Response:
        self._forget_pages()
        if (page := self._pages.get(request.path_params["name"])) is None:
            raise Refusal(
                404,
                f"this page is gone: pages are kept for {KEPT_SECONDS // 60} minutes. Ask for it "
                "again",
            )
        headers = {
            "Content-Length": str(len(page.content)),
            "Content-Security-Policy": ATTENTION_POLICY,
            # A browser may refuse to show a page that has both `sandbox` and another value of this.
            "Cross-Origin-Opener-Policy": "unsafe-none",
        }
        return StreamingResponse(page.pieces(), headers=headers, media_type="text/html")

    async def _get_models(self, request: Request) -> Response:
        cards = ModelsAnswer(models=[model.card for model in self._models.values()])
        return _json(cards.model_dump_json())

    async def _health(self, request: Request) -> Response:
        is_ready = all(model.is_ready for model in self._models.values())
        answer = requests.HealthAnswer(status="ok" if is_ready else "loading")
        headers = {} if is_ready else {"Retry-After": "5"}
        return _json(answer.model_dump_json(), 200 if is_ready else 503, headers)

    async def _get_metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def _model(self, name: str | None) -> ServedModel:
        names = ", ".join(self._models)
        if name is None and len(self._models) > 1:
            raise Refusal(422, f"model: missing. There are several: {names}")
        model = next(iter(self._models.values())) if name is None else self._models.get(name)
        if model is None:
            raise Refusal(422, f"model: there is no model of this name. There are: {names}")
        return model

    def _lines(
        self, query: requests.TranslateQuery | requests.PartsQuery, request: Request
    ) -> tuple[list[str], list[str]]:
        """As `requests.split`. The request's line in the log will have the number of lines."""
        lines, ends = requests.split(query.text, self._max_lines)
        request.state.lines = len(lines)
        request.state.text = query.text
        return lines, ends

    def _keep(self, name: str, page: _Page) -> None:
        """Keeps an attention page under a name.

        Raises:
            Refusal: clients are taking too many others.
        """
        self._forget_pages(room=len(page.content))
        self._in_memory.add(page)
        if sum(len(one.content) for one in self._in_memory) > 2 * KEPT_BYTES:
            raise Refusal(503, "too many pages are on their way to clients", Retry_After="10")
        self._pages[name] = page

    def _forget_pages(self, room: int = 0) -> None:
        """Drops the attention pages that are too old, and the oldest to have room for so many
        bytes."""
        kept = room + sum(len(page.content) for page in self._pages.values())
        for name, page in list(self._pages.items()):
            if kept <= KEPT_BYTES and time.monotonic() - page.made < KEPT_SECONDS:
                break
            kept -= len(page.content)
            del self._pages[name]

    # ---- Their registration ----

    def _with_endpoints(self, security: HTTPBearer | None) -> FastAPI:
        app = FastAPI(
            title="transformer_mt",
            version=__version__,
            description=DESCRIPTION,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            # Generators of clients name their functions so.
            generate_unique_id_function=lambda route: route.name.strip("_"),
        )
        for kind in (ClientGone, Refusal, UserError, Cancelled, HTTPException, Exception):
            app.add_exception_handler(kind, _handle)
        with_token = {"dependencies": [Depends(security)] if security else []}
        asking = [400, 408, 413, 415, 422, 429, 503]
        app.post(
            "/translate",
            summary="Translate text",
            openapi_extra=_takes(requests.TranslateQuery),
            responses=_answers(requests.TranslateAnswer, asking, security),
            **with_token,
        )(self._translate)
        app.post(
            "/parts",
            summary="Find the sentences of lines, which are translated one by one",
            openapi_extra=_takes(requests.PartsQuery),
            responses=_answers(requests.PartsAnswer, asking, security),
            **with_token,
        )(self._parts)
        app.post(
            "/attention",
            summary="Make a page of the attention maps of a sentence and its translation",
            openapi_extra=_takes(requests.AttentionQuery),
            responses=_answers(requests.AttentionAnswer, asking, security),
            **with_token,
        )(self._attention)
        app.get(
            "/attention/{name}",
            summary="A page that POST /attention has made",
            openapi_extra={"parameters": [_NAME]},
            response_class=HTMLResponse,
            responses=_answers(None, [404]),
        )(self._attention_page)
        app.get(
            "/models",
            summary="What the models are, and what they offer",
            responses=_answers(ModelsAnswer, [], security),
            **with_token,
        )(self._get_models)
        app.get(
            "/health",
            summary="Whether every model can translate",
            responses=_answers(requests.HealthAnswer, [])
            | {503: {"model": requests.HealthAnswer, "description": "Not every model can."}},
        )(self._health)
        app.get(
            "/metrics",
            summary="Counters, in Prometheus' text format",
            response_class=PlainTextResponse,
            responses=_answers(None, [], security),
            **with_token,
        )(self._get_metrics)
        app.get("/docs", include_in_schema=False)(_docs_page())
        app.mount("/docs", _Files(directory=SWAGGER))
        page = _Files(directory=PAGE, html=True)
        for path in ("/", *(f"/{file.name}" for file in PAGE.iterdir())):
            app.router.routes.append(Route(path, page, methods=["GET"]))
        return app


# The paths that need no token: what they give is in every installation of this program, tells only
# whether the service runs, or has a random name.
_OPEN = {"/": "page", "/docs": "docs", "/openapi.json": "docs", "/health": "/health"}
_OPEN |= {f"/{path.name}": "page" for path in PAGE.iterdir()}
_OPEN |= {f"/docs/{path.name}": "docs" for path in SWAGGER.iterdir()}


def endpoint_of(path: str) -> Endpoint:
    """What a path belongs to."""
    if path in _OPEN:
        return Endpoint(_OPEN[path], is_open=True)
    if path.startswith("/attention/"):
        return Endpoint("/attention/{name}", is_open=True)
    is_known = path in ("/translate", "/parts", "/attention", "/models", "/metrics")
    return Endpoint(path if is_known else "other")


class _Files(StaticFiles):
    """Files of pages. A browser asks each time whether they have changed."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _docs_page() -> Callable[[], Response]:
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


# ---- The OpenAPI description ----

_PROBLEMS = {
    400: "The request is not JSON.",
    401: "The token is missing or wrong.",
    404: "There is nothing of this name.",
    408: "The request took too long to arrive.",
    413: "The request has too many bytes.",
    415: "The request is not marked as `application/json`.",
    422: "A key or a value is wrong, or the text has too many lines or subwords.",
    429: "Too many requests are waiting. `Retry-After` says in how many seconds to try again.",
    503: "The service can't answer now. `Retry-After` says in how many seconds to try again.",
}
_RETRY = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}


def _takes(kind: type[requests.Query]) -> dict[str, Any]:
    """The body that a path takes. The body is read and checked in `Bodies` and `requests.parse`, so
    that FastAPI does not know it."""
    content = {"application/json": {"schema": kind.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def _answers(
    answer: type[BaseModel] | None, statuses: list[int], security: HTTPBearer | None = None
) -> dict[int | str, dict[str, Any]]:
    """The answers of a path: its own, and the problems it may have."""
    found: dict[int | str, dict[str, Any]] = {200: {"model": answer} if answer else {}}
    for status in ([401] if security else []) + statuses:
        found[status] = {"model": requests.Problem, "description": _PROBLEMS[status]}
        if status in (429, 503):
            found[status]["headers"] = _RETRY
    return found


def _json(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(text, status, headers, media_type="application/json")


async def _handle(request: Request, error: Exception) -> Response:
    return answer_to(error)
