"""How pages and model cards are made of the templates of this room (Jinja2).

A page is one file. It fetches nothing, and its Content-Security-Policy forbids it. Text is shown
and never run, because all that a template is given is escaped, as HTML or as Markdown.
"""

import html
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_mt.scoring.comparison import differences
from transformer_mt.utils.console import visible

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")


class Table(NamedTuple):
    """A table of plain text.

    Attributes:
        sides: the alignment of each column, < (text) or > (numbers); columns beyond are as the
            last one of these.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    sides: str = "<>"

    def is_number(self, column: int) -> bool:
        return self.sides[min(column, len(self.sides) - 1)] == ">"


def render(template: str, **values: Any) -> str:
    """Returns the text of a template, such as "run.html", with these values in it.

    Raises:
        ModuleNotFoundError: Jinja2 is not installed.
    """
    return _environment(template.endswith(".html")).get_template(template).render(values)


@cache
def _environment(is_html: bool) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    plain = visible if is_html else _plain_markdown
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=is_html,
        finalize=lambda value: value if hasattr(value, "__html__") else plain(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals["differences"] = differences
    return environment


def _plain_markdown(text: str) -> str:
    """Returns a text as one line that means nothing in Markdown or HTML."""
    text = html.escape(" ".join(text.split()), quote=False)
    # Hubs make links of www.x.org and https://x.org.
    return re.sub(r"([\\`*_{}\[\]()#+!|~]|(?<=www)\.|:(?=//))", r"\\\1", text, flags=re.I)
