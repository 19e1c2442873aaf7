"""The model directory: everything of one run, able to be moved.

config.yaml          the config as resolved
format_version       of this layout
subword.model        (or subword.source.model and subword.target.model, or subword.txt)
checkpoints/step_N/  model.pdparams, the state of training, and their checksums
best                 the name of the checkpoint to translate with: the best, or an average
metrics.jsonl        a line for every logged step, validation and score
held_out/            dev and test pairs taken from the training text, if any were
test.hypothesis      the translation of the test set at the end of training
export/              the model in other formats, where it was exported to them
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from transformer_mt import config_file
from transformer_mt.config import Config
from transformer_mt.data.subword import Subwords
from transformer_mt.errors import UsageError, UserError
from transformer_mt.files import atomic, byte_lines

FORMAT_VERSION = 1
_OWN = (
    "config.yaml",
    "format_version",
    "subword.model",
    "subword.source.model",
    "subword.target.model",
    "subword.txt",
    "checkpoints",
    "best",
    "metrics.jsonl",
    "held_out",
    "test.hypothesis",
    "export",
)


class ModelDirectory:
    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.held_out = self.path / "held_out"
        self._lock: IO | None = None

    @classmethod
    def of(cls, checkpoint: Path) -> ModelDirectory:
        """The model directory that a checkpoint is in."""
        return cls(checkpoint.parent.parent)

    # ------------------------------------------------------------------------------- writing

    def claim(self) -> None:
        """Makes the directory and takes hold of it for this process.

        Raises:
            UserError: another process holds it, or it can't be made.
            UsageError: it holds something else than a run.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 (held while we live)
        except OSError as error:
            raise UserError(f"model_dir: {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            self._lock = None
            if not isinstance(error, BlockingIOError):
                raise UserError(
                    f"model_dir: {self.path}: can't be locked: {error.strerror}. Give a folder "
                    "of a file system that has locks"
                ) from None
            raise UserError(
                f"{self.path} is in use by another process that trains into it. Wait for it, or "
                "give another model_dir=FOLDER"
            ) from None
        if not self._lock_is_in_place():
            # Whoever held it has removed it in the meantime, and others may lock a new one.
            self._lock.close()
            return self.claim()
        foreign = [
            entry.name
            for entry in self.path.iterdir()
            if entry.name not in _OWN and entry.name not in (".lock", ".workers")
        ]
        if (self.path / "config.yaml").exists() and not self.holds_run:
            foreign.append("config.yaml")
        if foreign and not self.holds_run:
            self.release()
            raise UsageError(
                f"model_dir: {self.path} is not empty and not a model directory "
                f"({', '.join(sorted(foreign)[:3])} ...). Give another model_dir=FOLDER"
            )

    @property
    def holds_run(self) -> bool:
        # Other programs have a config.yaml too.
        return all((self.path / name).exists() for name in ("config.yaml", "format_version"))

    def release(self) -> None:
        """Lets go of the directory, and removes it if nothing has come into it."""
        if self._lock is None:
            return
        if not self.holds_run:
            (self.path / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else may be in it
                self.path.rmdir()
        self._lock.close()
        self._lock = None

    def _lock_is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self.path / ".lock"))
        except FileNotFoundError:
            return False

    def start(self, config: Config, subwords: Subwords, held_out: list[Path]) -> None:
        """Clears what an earlier run left, and writes what a run has from its first moment."""
        for name in _OWN:
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.checkpoints.mkdir()
        if held_out:
            self.held_out.mkdir()
            for path in held_out:
                shutil.copyfile(path, self.held_out / path.name)
        subwords.save(self.path)
        with atomic(self.path / "format_version") as file:
            file.write(f"{FORMAT_VERSION}\n")
        with atomic(self.path / "config.yaml") as file:
            file.write(config_file.dump(config))

    def resume(self, config: Config, step: int, validated: int) -> None:
        """Makes the directory what it was when the checkpoint of `step` was saved, but for the
        config, in which some settings may have changed. `validated` is the step of the last
        validation that the checkpoint knows."""
        with atomic(self.path / "config.yaml") as file:
            file.write(config_file.dump(config))
        for leftover in self.checkpoints.glob(".*"):
            shutil.rmtree(leftover, ignore_errors=True)
        last = {"train": step, "skipped": step, "dev": validated}
        kept = [
            line for line in self._logged() if line.get("step", 0) <= last.get(line["kind"], -1)
        ]
        with atomic(self.path / "metrics.jsonl") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)

    def _logged(self) -> Iterator[dict[str, Any]]:
        """The lines of metrics.jsonl; the last may be torn, if the process was killed."""
        path = self.path / "metrics.jsonl"
        for line in byte_lines(path) if path.exists() else ():
            with contextlib.suppress(ValueError):
                yield json.loads(line)

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
            file.write(f"{checkpoint.name}\n")

    # ------------------------------------------------------------------------------- reading

    def load_config(self, overrides: list[str] | None = None) -> Config:
        """The config, with `section.key=value` overrides laid over it.

        Raises:
            UsageError: it is not a model directory, or one of another version; or an override is
                wrong.
        """
        if not (self.path / "config.yaml").is_file():
            raise UsageError(
                f"{self.path} is not a model directory (there is no config.yaml in it)"
            )
        version_file = self.path / "format_version"
        version = "none"
        if version_file.is_file():
            version = version_file.read_text(errors="replace").strip()
        if version != str(FORMAT_VERSION):
            raise UsageError(
                f"{self.path}: format version {version}, this program reads {FORMAT_VERSION}"
            )
        return config_file.load(self.path / "config.yaml", overrides)

    def load_subwords(self) -> Subwords:
        return Subwords.load(self.path)

    def saved_checkpoints(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        if not self.checkpoints.is_dir():
            return []
        found = [
            path for path in self.checkpoints.iterdir() if re.fullmatch(r"step_\d+", path.name)
        ]
        return sorted(found, key=checkpoint_step)

    def best(self) -> Path | None:
        try:
            name = (self.path / "best").read_text(errors="replace").strip()
        except FileNotFoundError:
            return None
        path = self.checkpoints / name
        return path if path in self._named_checkpoints() else None

    def _named_checkpoints(self) -> list[Path]:
        """Those of steps, and averages of them."""
        return [*self.saved_checkpoints(), *sorted(self.checkpoints.glob("average_*"))]

    def checkpoint(self, name: str | None = None) -> Path:
        """A checkpoint by name: step_N, average_KIND_N, best or last; None is the best, or the last
        if no best is known yet.

        Raises:
            UsageError: there is none of that name.
        """
        saved = self.saved_checkpoints()
        if not saved:
            raise UsageError(f"{self.path} has no checkpoint yet")
        if name == "last":
            return saved[-1]
        if name in (None, "best"):
            return self.best() or saved[-1]
        path = self.checkpoints / name
        if path not in self._named_checkpoints():
            known = ", ".join(["best", "last", *(path.name for path in self._named_checkpoints())])
            raise UsageError(f"{self.path} has no checkpoint {name!r}; it has {known}")
        return path


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
