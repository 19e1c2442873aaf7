"""Checksums: whether files are as they were written.

A folder lists those of its files in SHA256SUMS, which `sha256sum --check` reads too. A file that is
replaced while others read it can't be in such a list, for the two would change one after the other.
A text file then carries its own checksum in a comment at its end.
"""

from __future__ import annotations

import hashlib
import re
from fnmatch import fnmatchcase
from pathlib import Path

CHECKSUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/]+)")
_SEAL = re.compile(rb"(?s)(.*\n)# SHA-256 of the lines above: ([0-9a-f]{64})\n")


def write_checksums(folder: Path, pattern: str = "[!.]*") -> None:
    """Writes the SHA-256 of the files of a folder that match a pattern into one more.

    By default these are all but hidden ones.
    """
    names = sorted({path.name for path in folder.glob(pattern)} - {CHECKSUMS})
    lines = [f"{sha256(folder / name)}  {name}\n" for name in names]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def damage(folder: Path, pattern: str = "[!.]*") -> str | None:
    """What is wrong with the files of a folder that match a pattern; None if nothing is.

    Every file that matches must be listed, and every one that is listed must be there. By default
    these are all but hidden ones, which belong to the file system or a file manager.
    """
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return f"{CHECKSUMS} is missing or can't be read"
    matches = [_LINE.fullmatch(line) for line in text.split("\n") if line]
    if None in matches:
        return f"{CHECKSUMS} is not as it was written"
    sums = {match[2]: match[1] for match in matches}
    names = {path.name for path in folder.iterdir()} | sums.keys()
    names = sorted(name for name in names - {CHECKSUMS} if fnmatchcase(name, pattern))
    for name in names:
        path = folder / name
        if name not in sums:
            return f"{CHECKSUMS} does not name {name}"
        if path.resolve().parent != folder.resolve():
            return f"{name} is a link that leads out of the folder"
        if not path.is_file():  # reading a pipe would never end
            return f"{name} is missing" if not path.exists() else f"{name} is not a file"
        try:
            if sha256(path) != sums[name]:
                return f"{name} is not as it was written: its checksum differs"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None if names else f"there is no {pattern}"


def listed(folder: Path) -> set[str]:
    """The names of the files that a folder has checksums of."""
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return set()
    return {match[2] for line in text.split("\n") if (match := _LINE.fullmatch(line))}


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sealed(text: str) -> str:
    """Text of whole lines with its checksum as a comment (# ...) in one more line."""
    return f"{text}# SHA-256 of the lines above: {hashlib.sha256(text.encode()).hexdigest()}\n"


def is_sealed(content: bytes) -> bool:
    """Whether a text file is what `sealed` gave, without a change."""
    match = _SEAL.fullmatch(content)
    return match is not None and hashlib.sha256(match[1]).hexdigest().encode() == match[2]
