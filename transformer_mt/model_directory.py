"""The model directory: everything of one run, able to be moved, and safe to open.

config.yaml          the config as resolved; its last line is its checksum
format_version       of this layout
subword.model        (or subword.source.model and subword.target.model, or subword.txt)
SHA256SUMS           of the subword model
checkpoints/step_N/  model.safetensors, the state of training, and their checksums
best                 the checkpoint to translate with: the best, or an average
metrics.jsonl        a line for every logged step, validation and score
held_out/            dev and test pairs taken from the training text, if any were
test.hypothesis      the translation of the test set at the end of training
export/              the model in other formats, where it was exported to them

No file of it can run code when it is read, and none is read that is a link to a place outside.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_mt.config import file as config_file
from transformer_mt.config.schema import Config
from transformer_mt.data.subword import Subwords
from transformer_mt.runtime.checksums import (
    CHECKSUMS,
    damage,
    is_sealed,
    listed,
    sealed,
    write_checksums,
)
from transformer_mt.runtime.console import quoted, say, visible, warn
from transformer_mt.runtime.errors import UsageError, UserError
from transformer_mt.runtime.files import atomic, byte_lines
from transformer_mt.runtime.locks import open_locked

FORMAT_VERSION = 2
# The one before, whose weights were pickles, which `convert` reads.
PICKLE_FORMAT_VERSION = 1
CONFIG = "config.yaml"
VERSION = "format_version"
SUBWORDS = "subword.*"
# In an export: the checkpoint that it was made of, as `best` names it.
MADE_OF = "checkpoint"

_STEP = re.compile(r"step_\d+")
_CHECKPOINT = re.compile(r"step_\d+|average_(last|best)_\d+")
_NAMED = re.compile(rf"([0-9a-f]{{64}})  checkpoints/({_CHECKPOINT.pattern})/{CHECKSUMS}\n")
# What is written before the first checkpoint; nothing of it is lost if a run begins once more.
_OF_THE_START = {
    *(CONFIG, VERSION, CHECKSUMS, "metrics.jsonl", "held_out", "checkpoints"),
    *("subword.model", "subword.source.model", "subword.target.model", "subword.txt"),
}
_OF_CHECKPOINTS = {
    *("model.safetensors", "optimizer.safetensors", "state.json", CHECKSUMS),
    *("model.pdparams", "optimizer.pdopt"),  # of the format before
}
# Of this program at its work: its lock, the folder of its workers, files that are not whole yet.
_AT_WORK = re.compile(r"\.lock|\.workers|\..+\.(tmp|old)")


class ModelDirectory:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.held_out = self.path / "held_out"
        self._lock: int | None = None

    @classmethod
    def of(cls, checkpoint: Path) -> ModelDirectory:
        """The model directory that a checkpoint is in."""
        return cls(checkpoint.parent.parent)

    # ------------------------------------------------------------------------------- writing

    def claim(self, restart: bool = False) -> None:
        """Makes the directory and takes hold of it for this process.

        A folder may be entered that is empty, or holds a run that can be gone on with. With
        `restart` it may hold any run, which `start` then deletes.

        Raises:
            UserError: another process holds it, or it can't be made.
            UsageError: it holds something else.
        """
        self.lock()
        try:
            self._require_own(restart)
        except BaseException:
            self.release()
            raise

    def lock(self) -> None:
        """Makes the directory and takes hold of it for this process, whatever it holds.

        Raises:
            UserError: another process holds it, or it can't be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open_locked(self.path / ".lock", os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            self.lock()  # the process that held it has just removed the empty folder
        except BlockingIOError:
            raise UserError(
                f"{self.path} is in use by another process that trains into it. Wait for it, or "
                "give another model_dir=FOLDER"
            ) from None
        except OSError as error:
            raise UserError(
                f"model_dir: {self.path}: {error.strerror}. Give a folder that can be written to, "
                "on a file system that has locks"
            ) from None

    def _require_own(self, restart: bool) -> None:
        names = {entry.name for entry in self.path.iterdir() if not _is_at_work(entry.name)}
        # A process that was killed may have come no further than the first file.
        if not names or (names == {VERSION} and self._version() == str(FORMAT_VERSION)):
            return
        if not self.holds_run:
            shown = ", ".join(sorted(names)[:3]) + (" ..." if len(names) > 3 else "")
            raise UsageError(
                f"model_dir: {self.path} is not empty and holds no run of this program ({shown}). "
                "Nothing in it was touched. Give another model_dir=FOLDER"
                + (", or put its config.yaml back" if self.checkpoints.is_dir() else "")
            )
        if restart:
            for name in ("checkpoints", "held_out", "export"):
                self.own(name)
            return
        self.require_inside()
        self.load_config()  # complains of what is damaged, and of another version
        if not self.saved_checkpoints():
            others = sorted(names - _OF_THE_START)
            others += [
                f"checkpoints/{path.name}"
                for path in self._in_checkpoints()
                if not _is_at_work(path.name)
            ]
            if others:
                raise UsageError(
                    f"{self.path} holds a run without a checkpoint to go on from, but with "
                    f"{', '.join(others[:3])}. Give another model_dir=FOLDER; --restart deletes "
                    "the run and trains anew"
                )

    def require_inside(self) -> None:
        """Checks that nothing of a run leads elsewhere, before anything is written.

        Raises:
            UserError: it is a link to a place outside.
        """
        for entry in _entries(self.path):
            if entry.name in _OF_THE_START | {"best", "test.hypothesis", "export"}:
                self.own(entry.name)
        for folder in (self.checkpoints, self.held_out, self.path / "export"):
            for entry in _entries(folder):
                self.own(f"{folder.name}/{entry.name}")

    @property
    def holds_run(self) -> bool:
        """Whether it is a model directory, of this version or another; other programs have a
        config.yaml too."""
        return (self.path / CONFIG).is_file() and self._version().isdecimal()

    def release(self) -> None:
        """Lets go of the directory, and removes it if nothing has come into it."""
        if self._lock is None:
            return
        if not self.holds_run:
            (self.path / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else may be in it
                self.path.rmdir()
        os.close(self._lock)
        self._lock = None

    def start(self, config: Config, subwords: Subwords, held_out: list[Path]) -> None:
        """Deletes what an earlier run left, and writes what a run has from its first moment.

        What no run has written stays, and is named.
        """
        self._delete_run()
        # These two first: by them the directory is known as a run's, whenever it is stopped.
        with atomic(self.path / VERSION) as file:
            file.write(f"{FORMAT_VERSION}\n")
        self._write_config(config)
        subwords.save(self.path)
        write_checksums(self.path, SUBWORDS)
        self.checkpoints.mkdir(exist_ok=True)
        self.take_held_out(held_out)

    def take_held_out(self, files: list[Path]) -> None:
        """Keeps copies of the held-out pairs, if any were; whole ones that are there stay."""
        if not files or (self.held_out.is_dir() and damage(self.held_out) is None):
            return
        self.held_out.mkdir(exist_ok=True)
        for path in files:
            shutil.copyfile(path, self.held_out / path.name)
        write_checksums(self.held_out)

    def _write_config(self, config: Config) -> None:
        with atomic(self.path / CONFIG) as file:
            file.write(sealed(config_file.dump(config)))

    def resume(self, config: Config, step: int, validated: int) -> None:
        """Makes the directory what it was when the checkpoint of `step` was saved, but for the
        config, in which some settings may have changed. `validated` is the step of the last
        validation that the checkpoint knows."""
        self._write_config(config)
        for leftover in self._in_checkpoints():
            if _is_at_work(leftover.name):
                _delete(leftover)
        last = {"train": step, "skipped": step, "dev": validated}
        kept = [
            line
            for line in self._logged()
            if line.get("step", 0) <= last.get(str(line.get("kind")), -1)
        ]
        with atomic(self.path / "metrics.jsonl") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)

    def _delete_run(self) -> None:
        """Deletes what runs have written: config and version stay, which are written anew."""
        folders = [self.checkpoints, *self._in_checkpoints(), self.held_out]
        folders += [self.path / "export", *_entries(self.path / "export")]
        folders = [folder for folder in folders if self._is_own_folder(folder)]
        for folder in folders:
            for path in self._written_into(folder):
                _delete(path)
        for entry in _entries(self.path):
            # These two stay until they are written anew; a link would be written through.
            if entry.name in (CONFIG, VERSION) and not entry.is_symlink():
                continue
            if entry.name in _OF_THE_START | {"best", "test.hypothesis"}:
                _delete(entry, only_file=True)
        for folder in sorted(folders, key=lambda path: -len(path.parts)):
            with contextlib.suppress(OSError):  # something is left in it
                folder.rmdir()
        for path in self._in_checkpoints():
            if _CHECKPOINT.fullmatch(path.name):  # out of the way of the new run's
                path.rename(path.with_name(f"{path.name}.left"))
        left = [
            path.name if path.parent == self.path else f"{path.parent.name}/{path.name}"
            for path in (*_entries(self.path), *self._in_checkpoints())
            if path.name not in (CONFIG, VERSION, "checkpoints") and not _is_at_work(path.name)
        ]
        if left:
            more = f", and {len(left) - 10} more" if len(left) > 10 else ""
            say(f"{self.path}: left as it is, for no run wrote it: {', '.join(left[:10])}{more}")

    def _written_into(self, folder: Path) -> list[Path]:
        """What a run has written into one of the folders of its directory."""
        entries = _entries(folder)
        if folder.parent == self.checkpoints:
            is_checkpoint = _CHECKPOINT.fullmatch(folder.name.removesuffix(".damaged"))
            own = _OF_CHECKPOINTS if is_checkpoint else set()
        elif folder.parent == self.path / "export":
            own = listed(folder) | {CHECKSUMS} if (folder / VERSION).is_file() else set()
        else:
            pattern = {
                "checkpoints": _AT_WORK.pattern,
                "held_out": rf"{CHECKSUMS}|(dev|test)\.[^.]+",
                "export": rf"{_AT_WORK.pattern}|({_CHECKPOINT.pattern})\.pdparams",
            }[folder.name]
            own = {entry.name for entry in entries if re.fullmatch(pattern, entry.name)}
        return [entry for entry in entries if entry.name in own]

    def _is_own_folder(self, path: Path) -> bool:
        """Whether a path is a folder of this directory, and not by a link somebody else's."""
        place = self.path.resolve() / path.relative_to(self.path)
        return path.is_dir() and path.resolve() == place

    def _in_checkpoints(self) -> list[Path]:
        return _entries(self.checkpoints)

    def _logged(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl that are whole; the last may be torn, if the process was
        killed."""
        path = self.own("metrics.jsonl")
        for line in byte_lines(path) if path.is_file() else ():
            with contextlib.suppress(ValueError, RecursionError):
                values = json.loads(line)
                if isinstance(values, dict) and isinstance(values.get("step", 0), int):
                    yield values

    def log(self, **values: Any) -> None:
        """Appends a line to metrics.jsonl."""
        # JSON has no word for what is not a number, or infinite.
        values = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in values.items()
        }
        try:
            with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise UserError(f"{self.path / 'metrics.jsonl'}: {error.strerror}") from None

    def set_best(self, checkpoint: Path | None) -> None:
        """Names the checkpoint to translate with; None: the last one will do."""
        if checkpoint is None:
            (self.path / "best").unlink(missing_ok=True)
            return
        with atomic(self.path / "best") as file:
            file.write(named(checkpoint))

    # ------------------------------------------------------------------------------- reading

    def load_config(self, overrides: list[str] | None = None) -> Config:
        """The config, with `section.key=value` overrides laid over it.

        Raises:
            UserError: it is damaged.
            UsageError: it is not a model directory, or one of another version; or an override is
                wrong.
        """
        path = self.own(CONFIG)
        if not path.is_file():
            raise UsageError(
                f"{self.path} is not a model directory (there is no config.yaml in it)"
            )
        version = self._version()
        if version == str(PICKLE_FORMAT_VERSION):
            raise UsageError(
                f"{self.path} is of format version {version}, whose weights could run code when "
                "they are read. Convert it, which is safe wherever it comes from: python -m "
                f"transformer_mt convert {quoted(self.path)}"
            )
        if version != str(FORMAT_VERSION):
            raise UsageError(
                f"{self.path}: format version {version or 'none'}, this program reads "
                f"{FORMAT_VERSION}"
            )
        if not is_sealed(path.read_bytes()):
            raise UserError(
                f"{path}: damaged, or edited: its checksum, the last line, is that of another "
                "text. Put back what was there; decoding can be changed with flags such as "
                "--beam-size"
            )
        return config_file.load(path, overrides)

    def load_subwords(self) -> Subwords:
        """The subwords of both sides.

        Raises:
            UserError: they are missing or damaged.
        """
        if problem := damage(self.path, SUBWORDS):
            raise UserError(f"{self.path}: the subword model is damaged ({problem})")
        return Subwords.load(self.path)

    def own(self, name: str) -> Path:
        """A file or folder of the directory.

        Raises:
            UserError: it is a link to a place outside.
        """
        path = self.path / name
        if not path.resolve().is_relative_to(self.path.resolve()):
            raise UserError(
                f"{path} is a link to a place outside of the model directory, {path.resolve()}, "
                "and is not followed. Put a copy of what it leads to in its place"
            )
        return path

    def _version(self) -> str:
        """What format_version says, as far as it can be shown; empty if there is none."""
        return _beginning(self.own(VERSION), 20)

    def saved_checkpoints(self) -> list[Path]:
        """Whole checkpoints, oldest first.

        Raises:
            UserError: one of them is a link to a place outside.
        """
        names = [path.name for path in self._in_checkpoints() if _STEP.fullmatch(path.name)]
        return sorted((self.own(f"checkpoints/{name}") for name in names), key=checkpoint_step)

    def best(self) -> Path | None:
        """The checkpoint that `best` names; None if there is no such file, or, with a warning, if
        it is damaged or the checkpoint is gone."""
        path = self.own("best")
        if not path.exists():
            return None
        match = _NAMED.fullmatch(_beginning(path, 200) + "\n")
        if match is None:
            problem = "damaged"
        else:
            chosen = self.checkpoints / match[2]
            if chosen not in self.named_checkpoints():
                problem = f"names {chosen.name}, which is not there"
            elif _hash_of(chosen) != match[1]:
                problem = f"names {chosen.name}, which has changed since"
            else:
                return chosen
        warn(f"{path}: {problem}; the last checkpoint takes its place")
        return None

    def named_checkpoints(self) -> list[Path]:
        """Those of steps, and averages of them."""
        averages = [
            path
            for path in self._in_checkpoints()
            if _CHECKPOINT.fullmatch(path.name) and not _STEP.fullmatch(path.name)
        ]
        return [*self.saved_checkpoints(), *averages]

    def checkpoint(self, name: str | None = None) -> Path:
        """A checkpoint by name: step_N, average_KIND_N, best or last; None is the best, or the last
        if no best is known yet.

        Raises:
            UsageError: there is none of that name.
            UserError: it is a link to a place outside.
        """
        self.own("checkpoints")
        saved = self.saved_checkpoints()
        if not saved:
            raise UsageError(f"{self.path} has no checkpoint yet")
        if name == "last":
            path = saved[-1]
        elif name in (None, "best"):
            path = self.best() or saved[-1]
        else:
            path = self.checkpoints / name
            known = self.named_checkpoints()
            if path not in known:
                names = ", ".join(["best", "last", *(other.name for other in known)])
                raise UsageError(f"{self.path} has no checkpoint {name!r}; it has {names}")
        return self.own(f"checkpoints/{path.name}")


def named(checkpoint: Path) -> str:
    """A line that names a checkpoint, with the checksum of its checksums: for sha256sum --check, in
    the model directory."""
    return f"{_hash_of(checkpoint)}  checkpoints/{checkpoint.name}/{CHECKSUMS}\n"


def made_of_checkpoint(export: Path) -> str | None:
    """The line with which an export names its checkpoint, as `named` writes it; None: it has none,
    or a damaged one."""
    match = _NAMED.fullmatch(_beginning(export / MADE_OF, 200) + "\n")
    return match[0] if match else None


def _hash_of(checkpoint: Path) -> str:
    try:
        return hashlib.sha256((checkpoint / CHECKSUMS).read_bytes()).hexdigest()
    except OSError:
        return ""


def _beginning(path: Path, length: int) -> str:
    """The beginning of a small text file, as one line that can be shown; empty if there is no such
    file."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        text = file.read(length).decode("utf-8", "replace").strip()
    return visible(text).replace("\n", "\\n")


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_at_work(name: str) -> bool:
    return _AT_WORK.fullmatch(name) is not None


def _delete(path: Path, only_file: bool = False) -> None:
    """Deletes a file, a link (and not what it leads to), or a folder."""
    if path.is_dir() and not path.is_symlink():
        if not only_file:
            shutil.rmtree(path, ignore_errors=True)
        return
    path.unlink(missing_ok=True)


def checkpoint_step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))


def subwords_to_keep(config: Config) -> Subwords | None:
    """Fine-tuning (training.init_from) needs the subwords that the weights were trained with; None
    without.

    Raises:
        UserError: the other model is damaged.
        UsageError: there is none, or its subwords do not go together with the config.
    """
    other = config.training.init_from
    if other is None:
        return None
    directory = ModelDirectory(other)
    try:
        theirs, subwords = directory.load_config().subword, directory.load_subwords()
    except UserError as error:
        raise type(error)(f"training.init_from: {error}") from None
    # They are drawn as this config has it; their file, wherever it was, is in the directory now.
    changes = {"sampling": config.subword.sampling}
    if theirs.type == "vocabulary":
        changes["vocabulary"] = str(directory.path / "subword.txt")
    theirs = theirs.model_copy(update=changes)
    config_file.require_together(
        config.model_copy(update={"subword": theirs}),
        f"training.init_from: {other}: its subwords do not go together with this config",
    )
    return subwords
