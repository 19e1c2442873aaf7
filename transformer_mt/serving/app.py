"""The endpoints of the service, as an ASGI application.

FastAPI reads and checks the requests, and describes them. Starlette checks the Host header and the
origins of pages; guard.py checks the tokens, the kind and the size of requests. Here are the
endpoints, headers that make answers safe in a browser, the log and the metrics.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import fastapi_offline
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
)
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from transformer_mt import __version__
from transformer_mt.serving import forms, libretranslate, requests
from transformer_mt.serving.batching import Limits, Overloaded, Ticket, Unavailable
from transformer_mt.serving.documents import (
    TEXT,
    named_after,
    suffix_of,
    translate_document,
    translate_html,
)
from transformer_mt.serving.guard import CLIENT_GONE, KINDS, Access, Guard
from transformer_mt.serving.kept import File, Kept
from transformer_mt.serving.metrics import Metrics
from transformer_mt.serving.models import ServedModel
from transformer_mt.serving.requests import answer_to
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UserError

PAGE = Path(__file__).with_name("page")
mimetypes.add_type("font/woff2", ".woff2")  # not known to every Python
SWAGGER = Path(fastapi_offline.__file__).with_name("static")
DESCRIPTION = """\
Translates text. Requests and answers are JSON in UTF-8. An answer with a status from 400 on is
`{"detail": TEXT}`, and the text says what is wrong and what to do. With 429 and 503, `Retry-After`
says in how many seconds to try again."""
# The page of attention maps has its script and its style inside. `sandbox` takes it away from this
# service's origin, so that nothing in it could use the token.
ATTENTION_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src "
    "'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox allow-scripts allow-downloads",
    # A browser may refuse to show a page that has both `sandbox` and another value of this.
    "Cross-Origin-Opener-Policy": "unsafe-none",
}
POLICY = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
POLICY += "form-action 'none'; frame-ancestors 'none'"
# An answer that has one of these headers already keeps it.
SAFE_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
LONGEST = 100  # characters of a path or a method, in the log
# The requests that are answered at the same time. Their threads wait for a model most of the time.
MOST = 256
# The paths that need no token, and what they are called in the metrics: what they give is in every
# installation of this program, or tells only whether the service runs, and for which languages.
_OPEN = {"/": "page", "/docs": "docs", "/openapi.json": "docs"}
_OPEN |= {path: path for path in ("/health", "/languages", "/detect")}
_OPEN |= {f"/{path.name}": "page" for path in PAGE.iterdir()}
_OPEN |= {f"/docs/{path.name}": "docs" for path in SWAGGER.iterdir()}
# Behind these is a random name, which is a secret: whoever has it needs no token.
_NAMED = ("/attention/", "/download_file/")

Result = TypeVar("Result")


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
        *,
        log_text: bool = False,
    ) -> None:
        self._models = models
        self._metrics = Metrics(models)
        self._limits = limits
        self._log_text = log_text
        self._pool = ThreadPoolExecutor(MOST, thread_name_prefix="request")
        self._running: set[asyncio.Future] = set()
        self._access = access
        self._pages, self._files = Kept("page"), Kept("file")
        errors = RequestValidationError, HTTPException, UserError, Exception
        handlers: dict[Any, Any] = dict.fromkeys(errors, answer_to)
        self._app = FastAPI(
            title="transformer_mt",
            version=__version__,
            description=DESCRIPTION,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            # Generators of clients name their functions so.
            generate_unique_id_function=lambda route: route.name,
            exception_handlers=handlers,
            responses={"default": {"model": requests.Problem, "description": "What is wrong."}},
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=access.hosts, www_redirect=False),
                Middleware(
                    CORSMiddleware,
                    allow_origins=access.origins,
                    allow_methods=["GET", "POST"],
                    allow_headers=["Authorization", "Content-Type"],
                    expose_headers=["Retry-After"],
                ),
                Middleware(Guard, access=access, max_body=limits.max_body, is_open=is_open),
            ],
        )
        self._add_endpoints(has_token=access.tokens is not None)

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
                # A browser asks each time whether a file has changed.
                answer.setdefault("Cache-Control", "no-cache" if "etag" in answer else "no-store")
                if "transfer-encoding" in headers and "content-length" in headers:
                    # A proxy in front may see another end of the request, and so another request
                    # after it (RFC 9112, section 6.1).
                    answer["Connection"] = "close"
            await send(message)

        scope.setdefault("state", {})
        # The server leaves out the body of an answer to HEAD.
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        with self._metrics.in_progress.track_inprogress():
            try:
                await self._app({**scope, "method": method}, receive, send_safely)
            except (Exception, asyncio.CancelledError) as error:
                # Starlette raises again what it answered; a service that stops cancels the rest.
                if not status:
                    await answer_to(Request(scope), error)(scope, receive, send_safely)
        seconds = time.monotonic() - started
        endpoint = endpoint_of(scope["path"])
        self._metrics.requests.labels(endpoint, str(status)).inc()
        self._metrics.seconds.labels(endpoint).observe(seconds)
        if user := scope["state"].get("user"):
            self._metrics.user_requests.labels(user).inc()
        self._log(scope, status, seconds)

    def _log(self, scope: Scope, status: int, seconds: float) -> None:
        client = (scope.get("client") or ("-",))[0]
        path = scope["raw_path"].decode("ascii", "replace")  # %0A stays as it is
        if path.startswith(_NAMED):
            path = endpoint_of(path)
        state = scope["state"]
        user = f"{state['user']} " if state.get("user") else ""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {client} {user}{scope['method'][:LONGEST]} "
        line += f"{path[:LONGEST]} {status} {1000 * seconds:.0f} ms"
        if "lines" in state:
            line += f" {state['lines']} line{'' if state['lines'] == 1 else 's'}"
            if self._log_text:
                line += f" {json.dumps(state['text'], ensure_ascii=False)}"
        say(line)

    # ---- Endpoints. Their docstrings are in the description. ----

    async def translate(self, query: libretranslate.AnyQuery, request: Request) -> Response:
        """Translates text. A request has this service's own form, with `text`, or LibreTranslate's,
        with `q`, `source` and `target`. The answer has the form of its request."""
        if isinstance(query, libretranslate.LibreTranslateQuery):
            return await self._libre_translate(query, request)
        model, lines, ends = self._begin(query, request, query.text)
        warnings: list[str] = []

        def translate(ticket: Ticket) -> str:
            settings = query.n_best, query.beam_size, query.alignment
            translations = model.translate(
                *(lines, ticket, *settings),
                warn=lambda message, kind: warnings.append(message),
                terms=query.own_terms(),
            )
            return requests.answer(query, model.name, ends, translations, warnings)

        answer = await self._run(request, translate)
        self._count(request, model)
        return Response(answer, media_type="application/json")

    async def _libre_translate(
        self, query: libretranslate.LibreTranslateQuery, request: Request
    ) -> Response:
        request.state.is_libre, request.state.text = True, query.q
        model = libretranslate.choose(self._models.values(), query.source, query.target)
        source = model.card.source_lang
        lines, ends = libretranslate.lines_of_texts(query.texts)
        requests.require_few(len(lines), self._limits.max_lines)
        request.state.lines = len(lines)

        def translate(ticket: Ticket) -> str:
            if query.format == "html":
                document = self._document(request, model, ticket)
                versions = [[translate_html(text, document)] for text in query.texts]
            else:
                n_best = query.alternatives + 1 if query.alternatives else None
                protect = (libretranslate.PLACEHOLDER,)
                translations = model.translate(lines, ticket, n_best, protect=protect)
                versions = libretranslate.versions_of(ends, translations)
            answer = libretranslate.answer(query, source, versions)
            return answer.model_dump_json(exclude_none=True)

        answer = await self._run(request, translate)
        self._count(request, model)
        return Response(answer, media_type="application/json")

    async def translate_file(self, request: Request) -> libretranslate.FileAnswer:
        """Translates a file. Its lines count as those of a request do."""
        try:
            query = libretranslate.FileQuery.model_validate(request.state.form)
        except ValidationError as error:
            items = [{**item, "loc": ("body", *item["loc"])} for item in error.errors()]
            raise RequestValidationError(items) from None
        model = libretranslate.choose(self._models.values(), query.source, query.target)
        name, content = query.file.name, query.file.content
        request.state.lines, request.state.text = 0, name

        def translate(ticket: Ticket) -> bytes:
            return self._document(request, model, ticket)(content, name)

        translated = await self._run(request, translate)
        self._count(request, model)
        kept = self._files.add(File(named_after(name, model.card.target_lang), translated))
        host = request.headers["host"]
        # A proxy with TLS passes on the host, but not that its clients use https.
        known = (one for one in self._access.origins if one.partition("://")[2] == host)
        url = f"{next(known, f'http://{host}')}/download_file/{kept}{suffix_of(name)}"
        return libretranslate.FileAnswer(translatedFileUrl=url)

    async def download_file(self, name: str, request: Request) -> Response:
        """A file that POST /translate_file has made."""
        request.state.is_libre = True
        file = self._files.get(name.partition(".")[0])
        disposition = f"attachment; filename*=utf-8''{quote(file.name, safe='')}"
        return Response(
            file.content,
            media_type="application/octet-stream",
            headers={"Content-Disposition": disposition},
        )

    async def detect(self) -> libretranslate.LibreTranslateProblem:
        """Always an error: this service does not detect languages."""
        raise HTTPException(
            403, "this service does not detect languages. Give the code of the language as `source`"
        )

    async def languages(self) -> list[libretranslate.LanguageAnswer]:
        """The languages that the models translate from and into."""
        return libretranslate.languages(model.card for model in self._models.values())

    async def parts(self, query: requests.PartsQuery, request: Request) -> requests.PartsAnswer:
        """Finds the sentences of lines, which are translated one by one."""
        model, lines, _ = self._begin(query, request, query.text)
        parts = await self._run(request, lambda ticket: model.parts(lines))
        return requests.PartsAnswer.model_validate(
            {"parts": [[part._asdict() for part in of_line] for of_line in parts]}
        )

    async def attention(
        self, query: requests.AttentionQuery, request: Request
    ) -> requests.AttentionAnswer:
        """Makes a page of the attention maps of a sentence and its translation."""
        source, target = query.source, query.target
        model, _, _ = self._begin(query, request, "")
        request.state.text = [source, target]
        page = await self._run(
            request, lambda ticket: model.attention_page(source, target, ticket).encode()
        )
        return requests.AttentionAnswer(url=f"/attention/{self._pages.add(File('', page))}")

    async def attention_page(self, name: str) -> Response:
        """A page that POST /attention has made."""
        return HTMLResponse(self._pages.get(name).content, headers=ATTENTION_HEADERS)

    async def models(self) -> requests.ModelsAnswer:
        """What the models are, and what they offer."""
        return requests.ModelsAnswer(models=[model.card for model in self._models.values()])

    async def health(self) -> Response:
        """Whether every model can translate."""
        if all(model.workers.is_ready for model in self._models.values()):
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "loading"}, 503, {"Retry-After": "5"})

    async def metrics(self) -> Response:
        """Counters, in Prometheus' text format."""
        return Response(
            generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    def _document(
        self, request: Request, model: ServedModel, ticket: Ticket
    ) -> Callable[[bytes, str], bytes]:
        """A function that translates documents, given their content and name. The request's line in
        the log will have the number of their lines."""
        request.state.lines = 0
        languages = model.card.source_lang, model.card.target_lang

        def translate_file(content: bytes, name: str) -> bytes:
            def translate(lines: list[str]) -> list[str]:
                request.state.lines += len(lines)
                requests.require_few(request.state.lines, self._limits.max_lines)
                is_document = suffix_of(name) != TEXT
                found = model.translate(lines, ticket, in_document=is_document)
                return [translation.text for translation in found]

            return translate_document(content, name, languages, translate, model.name)

        return translate_file

    def _count(self, request: Request, model: ServedModel) -> None:
        """Counts the translated lines of a request."""
        lines = request.state.lines
        self._metrics.lines.labels(model.name).inc(lines)
        if user := getattr(request.state, "user", None):
            self._metrics.user_lines.labels(user).inc(lines)

    def _begin(
        self, query: requests.Query, request: Request, text: str | list[str]
    ) -> tuple[ServedModel, list[str], list[str]]:
        """The model of a request, and its lines with their ends (see `requests.split`). The
        request's line in the log will have their number.

        Raises:
            HTTPException: there is no such model, or something is wrong with the lines.
        """
        names = ", ".join(self._models)
        if query.model is None and len(self._models) > 1:
            raise HTTPException(422, f"model: missing. There are several: {names}")
        model = self._models.get(query.model or names)
        if model is None:
            raise HTTPException(422, f"model: there is no model of this name. There are: {names}")
        lines, ends = requests.split(text, self._limits.max_lines)
        request.state.lines, request.state.text = len(lines), text
        return model, lines, ends

    async def _run(self, request: Request, work: Callable[[Ticket], Result]) -> Result:
        """Runs the work of a request whose body was received, in a thread.

        Raises:
            HTTPException: the client has closed the connection. Its work is dropped.
            Unavailable: too many requests are being answered, or the time is over.
        """
        if len(self._running) >= MOST:
            raise Overloaded(f"{MOST} requests are being answered already. Try again later")
        ticket = Ticket()
        done = asyncio.get_running_loop().run_in_executor(self._pool, work, ticket)
        self._running.add(done)
        done.add_done_callback(self._end)
        gone = asyncio.ensure_future(_disconnection(request))
        try:
            await asyncio.wait(
                {done, gone}, timeout=self._limits.timeout, return_when=asyncio.FIRST_COMPLETED
            )
            if done.done():
                return done.result()
            if gone.done():
                raise HTTPException(CLIENT_GONE, "the client has closed the connection")
            raise Unavailable("the translation took too long. Send less text, or try again later")
        finally:
            gone.cancel()
            ticket.cancel()

    def _end(self, done: asyncio.Future) -> None:
        self._running.discard(done)
        if not done.cancelled():
            done.exception()  # Mark the exception as retrieved; nobody may await it.

    def _add_endpoints(self, has_token: bool) -> None:
        app = self._app
        bearer = [Depends(HTTPBearer(auto_error=False))] if has_token else []
        closed = APIRouter(dependencies=bearer)
        libre: dict[str, Any] = {
            "responses": {"default": {"model": libretranslate.LibreTranslateProblem}}
        }
        form = {"$ref": f"#/components/schemas/{libretranslate.LibreTranslateQuery.__name__}"}
        closed.post(
            "/translate",
            response_model=requests.TranslateAnswer | libretranslate.LibreTranslateAnswer,
            responses={
                "default": {"model": requests.Problem | libretranslate.LibreTranslateProblem}
            },
            openapi_extra=_takes(dict.fromkeys(forms.KINDS, form)),
        )(self.translate)
        closed.post(
            "/translate_file",
            openapi_extra=_takes({forms.MULTIPART: libretranslate.FILE_FORM}, required=True),
            **libre,
        )(self.translate_file)
        closed.post("/parts")(self.parts)
        closed.post("/attention")(self.attention)
        closed.get("/models")(self.models)
        closed.get("/metrics", response_class=PlainTextResponse)(self.metrics)
        app.include_router(closed)
        app.get("/attention/{name}", response_class=HTMLResponse)(self.attention_page)
        app.get("/download_file/{name}", response_class=Response, **libre)(self.download_file)
        app.get("/languages", **libre)(self.languages)
        app.post("/detect", **libre)(self.detect)
        app.get("/health", response_model=requests.HealthAnswer)(self.health)
        app.get("/docs", include_in_schema=False)(_docs)
        app.mount("/docs", StaticFiles(directory=SWAGGER))
        page = StaticFiles(directory=PAGE, html=True)
        for path in ("/", *(f"/{file.name}" for file in PAGE.iterdir())):
            app.router.routes.append(Route(path, page, methods=["GET"]))


async def _disconnection(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _docs() -> Response:
    headers = {"Content-Security-Policy": f"{POLICY}; style-src 'self' 'unsafe-inline'"}
    return FileResponse(PAGE / "docs.html", headers=headers)


def _takes(kinds: dict[str, Any], **values: Any) -> dict[str, Any]:
    """What the description says of the body of a request beside what FastAPI says."""
    content = {kind: {"schema": schema} for kind, schema in kinds.items()}
    return {"requestBody": {"content": content, **values}}


def is_open(path: str) -> bool:
    """Whether a path needs no token."""
    return path in _OPEN or path.startswith(_NAMED)


def endpoint_of(path: str) -> str:
    """What a path belongs to, in the metrics and the log. Neither may have a name that is a
    secret."""
    for beginning in _NAMED:
        if path.startswith(beginning):
            return f"{beginning}{{name}}"
    return path if path in (*KINDS, "/models", "/metrics") else _OPEN.get(path, "other")
