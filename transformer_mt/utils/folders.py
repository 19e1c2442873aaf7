"""Folders written completely or not at all, and checksums that reveal later changes of files.

A folder has a list of its files' checksums, SHA256SUMS, which `sha256sum --check` can read. A file
that may be replaced while others read it cannot be in such a list, because file and list would not
change at the same moment. If it is a text file, a comment at its end holds its checksum.
"""

import glob
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from transformer_mt.utils.files import clear_leftovers, flush_to_disk, open_locked

CHECKSUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64})  ([^/]+)")
_SEAL = re.compile(rb"(?s)(.*\n)(?:#|<!--) SHA-256 of the lines above: ([0-9a-f]{64})(?: -->)?\n")


def write_checksums(folder: Path, pattern: str = "[!.]*") -> None:
    """Writes the SHA-256 of each file in a folder that matches a pattern into SHA256SUMS.

    By default, these are all files that are not hidden.
    """
    names = sorted({path.name for path in folder.glob(pattern)} - {CHECKSUMS})
    lines = [f"{sha256(folder / name)}  {name}\n" for name in names]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def verify(folder: Path, pattern: str = "[!.]*") -> str | None:
    """Compares the files in a folder that match a pattern with SHA256SUMS.

    Every file that matches must be listed, and every listed file must exist. By default, these are
    all files that are not hidden; hidden files may belong to the file system or a file manager.

    Returns: a description of what is wrong, or None if nothing is.
    """
    lines = _lines(folder)
    if not all(lines) or not lines:
        return f"{CHECKSUMS} is missing or damaged"
    sums = {line[2]: line[1] for line in lines if line}
    known = {path.name for path in folder.iterdir()} | sums.keys()
    names = sorted(name for name in known - {CHECKSUMS} if fnmatchcase(name, pattern))
    for name in names:
        path = folder / name
        if name not in sums:
            return f"{CHECKSUMS} does not name {name}"
        if os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
            return f"{name} is a link that leads out of the folder"
        if not path.is_file():  # reading a pipe would wait forever
            return f"{name} is missing" if not path.exists() else f"{name} is not a file"
        try:
            if sha256(path) != sums[name]:
                return f"{name} is not as it was written: its checksum differs"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None if names else f"there is no {pattern}"


def listed(folder: Path) -> set[str]:
    """Returns the names in SHA256SUMS, also if some of its lines are damaged."""
    return {line[2] for line in _lines(folder) if line}


def checksum_of(folder: Path, name: str) -> str | None:
    """Returns the SHA-256 of a file that SHA256SUMS lists; None if it does not list it."""
    return next((line[1] for line in _lines(folder) if line and line[2] == name), None)


def _lines(folder: Path) -> list[re.Match[str] | None]:
    """Returns the lines of SHA256SUMS: groups 1 and 2 are checksum and name; None: a damaged line.
    There are none if the file is missing or can't be read."""
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return [_LINE.fullmatch(line) for line in text.split("\n") if line]


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sealed(text: str, comment: str = "# {}") -> str:
    """Appends the checksum of a text, which ends in a newline, as a line of comment.

    Args:
        comment: "# {}" for YAML, or "<!-- {} -->" for Markdown.
    """
    seal = f"SHA-256 of the lines above: {hashlib.sha256(text.encode()).hexdigest()}"
    return f"{text}{comment.format(seal)}\n"


def is_sealed(content: bytes) -> bool:
    """Returns whether a text file is unchanged since `sealed` made its content."""
    match = _SEAL.fullmatch(content)
    return match is not None and hashlib.sha256(match[1]).hexdigest().encode() == match[2]


@contextmanager
def published(path: Path, with_checksums: bool = True) -> Iterator[Path]:
    """Yields a new folder for the block to write into. When the block ends, checksums of its files
    are added, unless it has written them itself, and it replaces `path`. If the block fails, the
    new folder is deleted.

    An earlier `path` stays complete until it is replaced. If the process is killed while it is, the
    next call for `path` puts it back. What a killed process has left of a new folder is deleted.

    Raises:
        OSError: the folder can't be written.
    """
    final = Path(os.path.realpath(path))
    new = final.with_name(f".{final.name}.{os.getpid()}.tmp")
    parent_is_new = not final.parent.exists()
    descriptor = None
    try:
        new.parent.mkdir(parents=True, exist_ok=True)
        _put_back(final)
        clear_leftovers(final.parent, final.name)
        new.mkdir()
        descriptor = open_locked(new, os.O_RDONLY, wait=True, optional=True)
        yield new
        if with_checksums:
            write_checksums(new)
        for file in (*new.rglob("*"), new):
            flush_to_disk(file)
        replace(new, final)
        flush_to_disk(final.parent)
    finally:
        if descriptor is not None:
            os.close(descriptor)
        shutil.rmtree(new, ignore_errors=True)  # after a failure
        if parent_is_new:
            with suppress(OSError):  # it is not empty
                final.parent.rmdir()


def _put_back(final: Path) -> None:
    """Gives a folder its name again that a killed process had put aside (see `replace`). Another
    process must not be replacing it meanwhile."""
    asides = sorted(final.parent.glob(f".{glob.escape(final.name)}.*.old.tmp"))
    if asides and not final.exists():
        asides[0].rename(final)


def replace(new: Path, final: Path) -> None:
    """Renames a folder, in place of another one if there is one. That one is put aside first, and
    back if the second step fails."""
    aside = new.with_name(f".{final.name}.{os.getpid()}.old.tmp")
    if final.exists():
        final.rename(aside)
    try:
        new.rename(final)
    except OSError:
        if aside.exists():
            aside.rename(final)
        raise
    shutil.rmtree(aside, ignore_errors=True)
