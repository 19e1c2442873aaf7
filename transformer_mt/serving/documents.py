"""Documents that clients send as files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from transformer_mt.config.problems import printable
from transformer_mt.serving.requests import lines_of
from transformer_mt.utils.errors import UsageError

# The endings of the names of files that can be translated.
SUFFIXES = (".txt",)


def translate_document(
    content: bytes, name: str, translate: Callable[[list[str]], list[str]], made_by: str
) -> bytes:
    """The content of a document with its text translated, and with everything else as it was.

    Args:
        name: the document's, whose ending tells its format.
        translate: gives the translation of each line.
        made_by: the name of the model, for formats that can tell who translated.

    Raises:
        UsageError: there is no such format, or the content is not in it.
    """
    if suffix_of(name) not in SUFFIXES:
        raise UsageError(
            f"{printable(name[-100:])}: expected a file whose name ends in {', '.join(SUFFIXES)}"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{printable(name[-100:])}: the file is not text in UTF-8") from None
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    lines, ends = lines_of(text.removeprefix(mark))
    return (mark + "".join(map(str.__add__, translate(lines), ends))).encode()


def suffix_of(name: str) -> str:
    """The ending of a name that a client gave, in small letters."""
    return PurePosixPath(name).suffix.lower()


def named_after(name: str, target_lang: str) -> str:
    """The name of a translated document: letter_de.txt for letter.txt."""
    path = PurePosixPath(name.replace("\\", "/"))
    return f"{path.stem[:100]}_{target_lang}{path.suffix}"
