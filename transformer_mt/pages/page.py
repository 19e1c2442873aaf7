"""The frame of a self-contained HTML page, and the parts that every page has.

A page fetches nothing, and its Content-Security-Policy forbids it. All text that comes from files
is escaped by `escaped`, so that it is shown and never run.
"""

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from transformer_mt.evaluation.differences import Piece
from transformer_mt.utils.console import visible

STYLE = Path(__file__).with_name("style.css")


def page(title: str, body: str, script: str = "", frames: bool = False) -> str:
    """Returns a whole HTML page.

    Args:
        title: plain text.
        body: HTML.
        script: JavaScript of this program, without any text that comes from files.
        frames: whether the page holds other pages in frames (`iframe srcdoc`).
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    policy += "; img-src data:" + ("; frame-src 'self'" if frames else "")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n"
        f"</head>\n<body>\n{body}\n"
        + (f"<script>\n{script}\n</script>\n" if script else "")
        + "</body>\n</html>\n"
    )


def escaped(text: object) -> str:
    """Returns a text as HTML that shows it. It can be used inside of attributes too."""
    return html.escape(visible(str(text)), quote=True)


def marked(pieces: Iterable[Piece], spaces: bool) -> str:
    """Returns the pieces of a text as HTML, with those marked that differ from another text."""
    return (" " if spaces else "").join(
        f"<mark>{escaped(piece.text)}</mark>" if piece.differs else escaped(piece.text)
        for piece in pieces
    )


def section(title: str, *parts: str, id: str = "") -> str:
    """Returns a section with a heading (plain text) and the HTML of its parts."""
    name = f' id="{escaped(id)}"' if id else ""
    return f"<section{name}>\n<h2>{escaped(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def table(
    head: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "", sides: str = "<"
) -> str:
    """Returns a table of plain text.

    Args:
        sides: the alignment of each column, < (text) or > (numbers); columns beyond are numbers.
    """
    sides = sides.ljust(len(head), ">")

    def cells(row: Sequence[object], element: str) -> str:
        return "".join(
            f"<{element}{' class=number' if side == '>' else ''}>{escaped(cell)}</{element}>"
            for cell, side in zip(row, sides, strict=True)
        )

    title = f"<caption>{escaped(caption)}</caption>" if caption else ""
    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{cells(head, "th")}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
