"""A folder for the parts of an output, which outlives the process until the output is complete."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformer_mt.utils import signals
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import clear_leftovers, open_locked, write_atomically

# Says what the parts are made from.
DESCRIPTION = "made_from.json"


@contextmanager
def parts_folder(path: Path, made_from: dict[str, Any], resume: bool) -> Iterator[Path]:
    """Yields a folder that is locked for this process, and deleted when the block ends. If the
    block fails, or the process is killed, the folder stays and can be resumed.

    Args:
        made_from: everything that the parts follow from, in JSON's types.
        resume: whether to keep the parts that are there. Otherwise they are deleted.

    Raises:
        UsageError: the parts that are there were made from something else, or the folder is not one
            of this function.
        UserError: the folder can't be written, or another process works in it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open_locked(path, os.O_RDONLY, optional=True)
    except BlockingIOError:
        raise UserError(f"{path}: another process works in it") from None
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror or error}") from None
    try:
        _prepare(path, made_from, resume)
        try:
            yield path
        except BaseException:
            _leave(path)
            raise
        with signals.held_back(), suppress(OSError):
            _delete(path)
    finally:
        os.close(lock)


def _prepare(path: Path, made_from: dict[str, Any], resume: bool) -> None:
    description = path / DESCRIPTION
    clear_leftovers(path, DESCRIPTION)  # of a process that was killed before its first part
    is_ours = description.is_file()
    if not is_ours and any(path.iterdir()):
        raise UsageError(
            f"{path}: this folder is needed for parts of the output, and something else is in it. "
            "Rename it, or give another name for the output"
        )
    if resume and is_ours:
        try:
            then = json.loads(description.read_bytes())
        except (OSError, ValueError):
            then = {}
        # What is written is compared as JSON reads it back, which has no tuples.
        now = json.loads(json.dumps(made_from))
        names = dict.fromkeys([*now, *then])
        if other := [name for name in names if then.get(name) != now.get(name)]:
            raise UsageError(
                f"--resume: {path} was begun with another {', '.join(other)}. Repeat the command "
                "as it was, or leave out --resume to start again"
            )
        return
    if resume:
        say(f"{path}: there is nothing to continue; starting from the beginning")
    for old in path.iterdir():
        old.unlink()
    write_atomically(description, json.dumps(made_from))


def _leave(path: Path) -> None:
    """Says that the parts are kept, or deletes a folder without parts."""
    with suppress(OSError):
        if {entry.name for entry in path.iterdir()} - {DESCRIPTION}:
            say(f"{path}: what is translated is kept; to continue, add --resume to the command")
        else:
            _delete(path)


def _delete(path: Path) -> None:
    # The description is deleted last: as long as it is there, the folder is known as one of ours.
    for part in path.iterdir():
        if part.name != DESCRIPTION:
            part.unlink()
    (path / DESCRIPTION).unlink(missing_ok=True)
    path.rmdir()
