r"""The command `serve`.

The page is at the address that the command prints. Other programs send requests:

  POST /translate  {"text": TEXT} or {"text": [LINE, ...]} gives the translations
  GET  /models     what the models are
  GET  /health     whether the service can translate
  GET  /metrics    counters for Prometheus
  GET  /docs       describes all of it, and lets you try it

Clients of LibreTranslate, such as Weblate, can use the service too: see docs/serving.md.

The first Ctrl-C or SIGTERM lets requests that have begun finish, and the exit code is then 0. The
second one ends at once.

examples:
  python -m transformer_mt serve runs/demo
  python -m transformer_mt serve runs/demo/export/ctranslate2 runs/other --port 8080
  python -m transformer_mt serve runs/demo --host 0.0.0.0 --token @token.txt
  python -m transformer_mt serve runs/demo --host 0.0.0.0 --tokens tokens.txt
  curl http://127.0.0.1:8000/translate -H 'Content-Type: application/json' \
      -d '{"text": "Where is the station?"}'
"""

from __future__ import annotations

import argparse
import os
import re
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_mt.commands import arguments
from transformer_mt.commands.arguments import SETTINGS, positive, positive_number
from transformer_mt.config.section import one_line
from transformer_mt.serving.batching import Limits
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError

if TYPE_CHECKING:
    from transformer_mt.serving.guard import Access
    from transformer_mt.serving.tokens import Tokens

TOKEN_VARIABLE = "TRANSFORMER_MT_TOKEN"
# A browser writes a name with other letters as xn--..., and sends no wildcard. Those of extensions
# begin with chrome-extension:// or the like.
_ORIGIN = re.compile(
    r"(https?|[a-z]+(?:-web)?-extension)://([\w.-]+|\[[0-9a-f:]+])(:\d{1,5})?/?", re.ASCII
)
# The fields of Limits: the name and the meaning of the value.
LIMITS = {
    "max_body": ("BYTES", "the size of a request"),
    "max_lines": ("N", "the lines of a request"),
    "max_subwords": ("N", "the subwords of a request, of all its lines together"),
    "max_waiting": ("N", "the sentences, of all requests together, that may wait for a model"),
    "max_batch": ("N", "the sentences that are translated together; 1 translates each alone"),
    "timeout": ("SECONDS", "the time that a request may take, from its last byte to its answer"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="MODEL_DIR[:CHECKPOINT]",
        nargs="+",
        help="a model directory, and optionally one of its checkpoints, or an export. With exports "
        "for CTranslate2 alone, Paddle is not needed",
    )
    group = parser.add_argument_group("options for the address, and for who may use it")
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="the address to listen at; 0.0.0.0 is every address of this machine (default: "
        "127.0.0.1, which only this machine can reach)",
    )
    group.add_argument(
        "--port",
        metavar="N",
        type=_port,
        default=8000,
        help="the port to listen at; 0 is any free one (default: 8000)",
    )
    exclusive = group.add_mutually_exclusive_group()
    arguments.add_values(
        exclusive,
        "TEXT|@FILE",
        token="a secret that requests must have, or the file that holds it (default: the "
        f"environment variable {TOKEN_VARIABLE}, if it is set)",
    )
    arguments.add_files(
        exclusive,
        tokens="a file with the token of each user, one per line, as NAME:TOKEN. It is read again "
        "when it changes. The log names the users",
    )
    arguments.add_switches(
        exclusive,
        no_token="lets everybody who can reach the service use it; with another --host, either "
        "this or a token is needed",
    )
    group.add_argument(
        "--allow-origin",
        metavar="ORIGIN",
        action="append",
        default=[],
        help="another address at which the service is reached, or whose pages may use it, such as "
        "https://example.com. May be repeated",
    )
    arguments.add_switches(
        group, log_text="also prints the text of requests; otherwise, no text is kept anywhere"
    )
    group = parser.add_argument_group(arguments.MODEL_GROUP)
    arguments.add_engine(group)
    arguments.add_threads(group)
    arguments.add_device(group)
    group.add_argument("--tag", metavar="X", help=one_line(SETTINGS["tag"].description))
    group = parser.add_argument_group("limits (what is beyond them is refused)")
    for field in fields(Limits):
        unit, meaning = LIMITS[field.name]
        group.add_argument(
            arguments.flag(field.name),
            metavar=unit,
            type=positive if isinstance(field.default, int) else positive_number,
            default=field.default,
            help=f"{meaning} (default: {field.default:,})",
        )


def run(options: argparse.Namespace) -> None:
    # Help does not need them.
    from transformer_mt.serving import server
    from transformer_mt.serving.app import Service
    from transformer_mt.serving.models import serving

    limits = Limits(**{field.name: getattr(options, field.name) for field in fields(Limits)})
    with closing(server.bind(options.host, options.port)) as listening:
        access = _access(options, is_private=server.is_loopback(listening))
        with serving(
            options.models,
            limits,
            engine=options.engine,
            threads=options.threads,
            device=options.device,
            tag=options.tag,
        ) as models:
            service = Service(models, limits, access, log_text=options.log_text)
            cards = [model.card for model in models.values()]
            names = ", ".join(f"{c.name} ({c.source_lang}-{c.target_lang})" for c in cards)
            say(f"{server.address(listening)} serves {names}  Ctrl-C stops it")
            server.run(service, listening, limits.timeout)


def _access(options: argparse.Namespace, is_private: bool) -> Access:
    from transformer_mt.serving.guard import Access

    tokens = _tokens(options)
    if tokens is None and not is_private and not options.no_token:
        raise UsageError(
            f"--host {options.host}: other machines can use the service. Add --token @FILE with a "
            "secret that requests must have, --tokens FILE with one for each user, or --no-token "
            "if everybody may use it"
        )
    allowed = [read_origin(text) for text in options.allow_origin]
    # Where others can reach the service, a token protects it, or everybody may use it.
    names = (*Access.hosts, options.host.lower(), *(host for _, host in allowed))
    return Access(names if is_private else ("*",), tuple(origin for origin, _ in allowed), tokens)


def read_origin(text: str) -> tuple[str, str]:
    """An origin in the form in which browsers send it, and the name in it without its port.

    Raises:
        UsageError: it is not one.
    """
    match = _ORIGIN.fullmatch(text.lower())
    if match is None:
        raise UsageError(
            f"--allow-origin {text}: expected the beginning of an address, as in "
            "https://example.com, http://example.com:8080 or moz-extension://NAME"
        )
    scheme, host, port = match.groups()
    if port == {"http": ":80", "https": ":443"}.get(scheme):
        port = None
    return f"{scheme}://{host}{port or ''}", host


def _tokens(options: argparse.Namespace) -> Tokens | None:
    """
    Raises:
        UsageError: a token can't be one, or a file can't be read.
    """
    from transformer_mt.serving.tokens import Tokens, require_token

    if options.tokens is not None:
        return Tokens.read(options.tokens)
    name, token = "--token", options.token
    if token is None:
        name, token = TOKEN_VARIABLE, os.environ.get(TOKEN_VARIABLE)
    elif token.startswith("@"):
        name = token
        try:
            token = Path(token[1:]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError):
            raise UsageError(f"--token {name}: the file can't be read") from None
    if token is None or options.no_token:
        return None
    return Tokens({"": require_token(token, name)})


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, from 0 to 65535")
    return int(text)
