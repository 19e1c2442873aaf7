"""Reads the files of a model of Marian: weights (`*.npz`) with options, and vocabularies."""

from __future__ import annotations

import io
import re
import tokenize
from typing import IO, Any

import numpy as np
import yaml

from transformer_mt.pretrained.limited import LARGEST, finite_float32, read_json
from transformer_mt.utils.zips import ZipArchive, shown

# The options that a model was trained with are an array of their own in its file.
OPTIONS = "special:model.yml"
_LARGEST_YAML = 100_000
_LONGEST_LINE = 10_000
# NumPy parses the header of an array as a literal of Python, and raises whatever that does.
_HEADER_ERRORS = (
    *(ValueError, LookupError, TypeError, SyntaxError, tokenize.TokenError),
    *(RecursionError, MemoryError, OverflowError),
)
_LARGEST_VOCABULARY = 1 << 20
_DTYPES = ("<f4", "<f8", "<f2", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8")
_KEY = r"""(?P<key>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^"'].*?)"""
# A key and its id: `"piece": 7` with escapes, `'piece': 7`, or `piece: 7`. A key of more than 1,024
# characters has a line of its own: `? piece`, and below it `: 7`.
_LINE = re.compile(_KEY + r" *: +(?P<id>[0-9]{1,9}) *")
_LONG_KEY = re.compile(r"\? " + _KEY + " *")
_ITS_ID = re.compile(r": +(?P<id>[0-9]{1,9}) *")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")
_CHARACTERS = {
    **{"0": "\0", "a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"},
    **{"e": "\x1b", " ": " ", '"': '"', "/": "/", "\\": "\\"},
    **{"N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"},
}


def read_npz(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Returns the arrays of a file of NumPy or Marian by their names. Arrays of Python objects,
    which could run code, are not read.

    Args:
        file: it can be read from any position.

    Returns: C-contiguous arrays: float32 for arrays of any float type, and the same type for
        integers.

    Raises:
        ValueError: it is damaged, has another format or type, or holds NaN or infinity.
        OSError: it can't be read.
    """
    archive = ZipArchive(file, LARGEST)
    arrays: dict[str, np.ndarray] = {}
    for member in archive.names():
        name = member.removesuffix(".npy")
        if name in arrays:
            raise ValueError(f"it has {shown(name)} twice")
        content = archive.read(member)
        shape, is_fortran, dtype, start = _npy_header(name, content)
        count = 1
        for number in shape:
            count *= number
        if dtype.str not in _DTYPES or min((0, *shape)) < 0:
            raise ValueError(f"its array {shown(name)} has the type {shown(dtype)}, not of numbers")
        if len(content) - start != count * dtype.itemsize:
            raise ValueError(f"it is damaged: its array {shown(name)} has another size")
        array = content[start:].view(dtype).reshape(shape, order="F" if is_fortran else "C")
        if array.dtype.kind == "f":
            array = finite_float32(name, array)
        arrays[name] = np.ascontiguousarray(array).reshape(shape)
    return arrays


def _npy_header(name: str, content: np.ndarray) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Returns shape, whether the order is Fortran's, dtype, and where the numbers begin."""
    stream = io.BytesIO(content[: 1 << 16].tobytes())
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        version = np.lib.format.read_magic(stream)
        shape, is_fortran, dtype = read_header[version](stream)
    except _HEADER_ERRORS as error:
        raise ValueError(
            f"it is damaged: its array {shown(name)} has no header ({shown(error)})"
        ) from None
    return shape, is_fortran, dtype, stream.tell()


def read_options(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Returns the options that a model of Marian was trained with, from the arrays of its file.

    Raises:
        ValueError: it has none, or they are not YAML.
    """
    array = arrays.get(OPTIONS)
    if array is None or array.dtype.itemsize != 1:
        raise ValueError(f"it has no options ({OPTIONS}), so it is not a model of Marian")
    return read_yaml(array.tobytes().split(b"\0")[0])


class _Loader(yaml.SafeLoader):
    """Has no aliases: with these, a few lines can describe more than a memory has."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)


def read_yaml(content: bytes) -> dict[str, Any]:
    """Returns the mapping that a small YAML file holds, such as `decoder.yml`.

    Raises:
        ValueError: it is larger than 100 kB, not YAML in UTF-8, or not a mapping.
    """
    if len(content) > _LARGEST_YAML:
        raise ValueError("it is larger than 100 kB")
    try:
        values = yaml.load(content.decode(), Loader=_Loader)
    except UnicodeDecodeError:
        raise ValueError("it is not in UTF-8") from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"it is not YAML: {shown(' '.join(str(error).split()))}") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a mapping in YAML")
    return values


def read_vocabulary(name: str, content: bytes) -> list[str]:
    """Returns the pieces of a vocabulary in the order of their ids.

    There are three forms. Two map pieces to ids: YAML with one piece per line, as Marian and
    OPUS-MT's scripts write it (*.vocab.yml), and JSON, which is YAML too (*.json). The third has
    only the pieces, one per line (*.vocab). Like Marian, this function goes by the file's name.

    No reader of YAML is used, because PyYAML takes pieces such as `no`, `1_000` or `<<` for
    something else, and U+2028 for the end of a line.

    Raises:
        ValueError: it is damaged, has a piece or an id twice, or lacks an id.
    """
    if content.lstrip()[:1] == b"{" and content.rstrip()[-1:] == b"}":
        return _in_order(list(read_json(content).items()))
    try:
        lines = content.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        number = content[: error.start].count(b"\n") + 1
        raise ValueError(f"line {number} is not UTF-8") from None
    if not name.endswith((".json", ".yaml", ".yml")):
        if "" in lines:
            raise ValueError(f"line {lines.index('') + 1} is empty")
        return _in_order([(piece, number) for number, piece in enumerate(lines)])
    ids: list[tuple[str, object]] = []
    long_key: str | None = None
    for number, line in enumerate(lines, 1):
        if long_key is None and (not line or line.startswith("#") or line == "---"):
            continue
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"line {number} is longer than {_LONGEST_LINE} characters")
        if long_key is None and (match := _LONG_KEY.fullmatch(line)):
            long_key = match[1]
            continue
        match = (_LINE if long_key is None else _ITS_ID).fullmatch(line)
        if match is None:
            raise ValueError(f"line {number} is not a piece and its id: {shown(line)!r}")
        ids.append((_unquoted(long_key or match["key"], number), int(match["id"])))
        long_key = None
    if long_key is not None:
        raise ValueError("it is truncated")
    return _in_order(ids)


def _unquoted(key: str, line: int) -> str:
    """Returns the text that a scalar of YAML stands for."""
    if key[0] == "'":
        return key[1:-1].replace("''", "'")
    if key[0] != '"':
        return key

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is None:
            return _CHARACTERS[match[4]]
        if 0xD800 <= int(code, 16) < 0xE000:
            raise ValueError
        return chr(int(code, 16))

    try:
        return _ESCAPE.sub(character, key[1:-1])
    except (LookupError, ValueError, OverflowError):
        raise ValueError(f"line {line} has an escape that YAML does not have") from None


def _in_order(ids: list[tuple[str, object]]) -> list[str]:
    """Returns the pieces in the order of their ids, after checking that these are 0, 1, 2, …"""
    if not 0 < len(ids) <= _LARGEST_VOCABULARY:
        raise ValueError(f"it has {len(ids)} pieces; 1 to {_LARGEST_VOCABULARY} can be read")
    pieces: list[str | None] = [None] * len(ids)
    seen: set[str] = set()
    for piece, identity in ids:
        if piece in seen:
            raise ValueError(f"it has the piece {shown(piece)!r} twice")
        seen.add(piece)
        if type(identity) is not int or not 0 <= identity < len(ids):
            raise ValueError(
                f"the id of {shown(piece)!r} is {shown(identity)}, but those of {len(ids)} pieces "
                f"are 0 to {len(ids) - 1}"
            )
        if pieces[identity] is not None:
            raise ValueError(
                f"{shown(pieces[identity])!r} and {shown(piece)!r} both have the id {identity}"
            )
        pieces[identity] = piece
    return [piece for piece in pieces if piece is not None]
