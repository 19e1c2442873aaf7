"""Documents that clients send as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from transformer_mt.config.problems import printable
from transformer_mt.decoding import documents
from transformer_mt.formats import registry
from transformer_mt.serving.requests import lines_of
from transformer_mt.utils.errors import UsageError, UserError

# The ending of the names of files that are lines of text. Others are those of documents.
TEXT = ".txt"


def translate_document(
    content: bytes,
    name: str,
    languages: tuple[str, str],
    translate: Callable[[list[str]], list[str]],
    made_by: str,
) -> bytes:
    """The content of a document with its text translated, and with everything else as it was.
    Tables are no documents here, because nobody says which of their columns are translated.

    Args:
        name: the document's, whose ending tells its format.
        languages: the codes of the source and the target language.
        translate: gives the translation of each line. It has to protect markup.
        made_by: the name of the model, for formats that can tell who translated.

    Raises:
        UsageError: there is no such format, or the content is not in it.
    """
    # Messages quote the name, and may be shown on a page.
    shown = printable(PurePosixPath(name.replace("\\", "/")).name[-100:], longest=1000)
    if suffix_of(name) == TEXT:
        return _translate_lines(content, shown, translate)
    if not registry.is_document(PurePosixPath(shown)):
        endings = [ending for ending, own in registry.FORMATS.items() if own.is_whole_document]
        expected = ", ".join([TEXT, *endings])
        raise UsageError(f"{shown}: expected a file whose name ends in one of {expected}")
    of_model: list[UserError] = []

    def ask(lines: Mapping[str, str]) -> list[str]:
        try:
            return translate(list(lines))
        except UserError as error:
            of_model.append(error)
            raise

    try:
        document = registry.parse(content, shown, languages)
        return documents.translate_document(document, ask, made_by).content
    except UserError as error:
        if error in of_model or isinstance(error, UsageError):
            raise
        raise UsageError(str(error)) from None


def _translate_lines(
    content: bytes, name: str, translate: Callable[[list[str]], list[str]]
) -> bytes:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{name}: the file is not text in UTF-8") from None
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    lines, ends = lines_of(text.removeprefix(mark))
    return (mark + "".join(map(str.__add__, translate(lines), ends))).encode()


def translate_html(text: str, translate: Callable[[bytes, str], bytes]) -> str:
    """A text that is HTML with its translation.

    Args:
        translate: the content of a translated document, given its content and name.
    """
    # The mark says that it is UTF-8, whatever charset is named in the text.
    mark = "\ufeff"
    return translate((mark + text).encode(), "text.html").decode().removeprefix(mark)


def suffix_of(name: str) -> str:
    """The ending of a name that a client gave, in small letters."""
    return PurePosixPath(name).suffix.lower()


def named_after(name: str, target_lang: str) -> str:
    """The name of a translated document: letter_de.txt for letter.txt."""
    path = PurePosixPath(name.replace("\\", "/"))
    return f"{path.stem[:100]}_{target_lang}{path.suffix}"
