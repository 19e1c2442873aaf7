"""HTML forms, in both ways in which they are sent (RFC 7578 and the URL standard).

They are read from memory, because --max-body limits a request. So nothing of a file that a client
sends is written to a disk.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from starlette.exceptions import HTTPException

from transformer_mt.serving.kept import File

URL_ENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"
KINDS = (URL_ENCODED, MULTIPART)
# The fields of a form. Each text of a list has one.
MOST_FIELDS = 2_000
_DISPOSITION = re.compile(r"(?im)^content-disposition:(.*)$")
# The package email reads parameters too, but its time grows with the square of their length.
_PARAMETER = re.compile(r""";\s*([\w*.-]+)=("(?:[^"\\]|\\.)*"|[^\s;"]*)""")

Form = dict[str, "str | File | list[str | File]"]


def read(content_type: str, body: bytes) -> Form:
    """The fields of a form. A field that is there several times has the list of its values.

    Args:
        content_type: the header of the request, one of KINDS with parameters.

    Raises:
        HTTPException: the form is not well-formed, or it is JSON, which curl sends as a form if it
            is not told otherwise.
    """
    if body.lstrip().startswith(b'{"'):  # a form has these characters in another way
        raise HTTPException(415, "got JSON: send the header `Content-Type: application/json`")
    try:
        if content_type.strip().lower().startswith(MULTIPART):
            fields = _parts(_parameters(content_type).get("boundary", ""), body)
        else:
            text = body.decode()
            fields = [*parse_qsl(text, True, errors="strict", max_num_fields=MOST_FIELDS)]
    except ValueError as error:  # UnicodeDecodeError is one.
        raise HTTPException(400, f"the request is not a form in UTF-8: {error}") from None
    values: dict[str, list[str | File]] = {}
    for name, value in fields:
        values.setdefault(name, []).append(value)
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def _parts(boundary: str, body: bytes) -> list[tuple[str, str | File]]:
    """The names and values of multipart/form-data.

    Raises:
        ValueError: it is not well-formed.
    """
    if not boundary:
        raise ValueError("the header Content-Type has no boundary")
    # Each delimiter begins with the line end before it, which the first one may lack.
    _, *pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), MOST_FIELDS + 1)
    if not any(piece.startswith(b"--") for piece in pieces):
        raise ValueError("it has no end, or too many fields")
    fields = []
    for piece in pieces:
        if piece.startswith(b"--"):
            break
        head, _, content = piece.lstrip(b" \t").removeprefix(b"\r\n").partition(b"\r\n\r\n")
        disposition = _DISPOSITION.search(head.decode())
        values = _parameters(disposition[1]) if disposition else {}
        if "name" not in values:
            raise ValueError("a part has no name")
        file = values.get("filename*", values.get("filename"))
        value = content.decode() if file is None else File(file, content)
        fields.append((values["name"], value))
    return fields


def _parameters(header: str) -> dict[str, str]:
    """The parameters of a header by their names, such as `boundary`. A name that ends in * has a
    value with its encoding (RFC 8187)."""
    found = {}
    for name, value in _PARAMETER.findall(header):
        if value.startswith('"'):
            value = re.sub(r'\\(["\\])', r"\1", value[1:-1])
        if name.endswith("*"):
            value = unquote(value.rpartition("'")[2])
        found[name.lower()] = value
    return found
