"""A model directory as a run writes it: claimed, started, resumed, logged into, and put aside."""

import contextlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.config import file as config_file
from transformer_mt.config.schema import Config
from transformer_mt.data.shortlist import Shortlist
from transformer_mt.data.subword import Subwords
from transformer_mt.model_directory import (
    CONFIG,
    DATA_FACTS,
    FORMAT_VERSION,
    HYPOTHESIS,
    LOG,
    MODEL_CARD,
    REPORT,
    SHORTLIST,
    SUBWORDS,
    TUNING,
    VERSION,
    ModelDirectory,
    entries,
    named,
)
from transformer_mt.utils import console
from transformer_mt.utils.console import say
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import (
    as_line,
    atomic,
    clear_leftovers,
    open_locked,
    write_atomically,
)
from transformer_mt.utils.folders import CHECKSUMS, sealed, verify, write_checksums
from transformer_mt.weights import BASE, WEIGHTS

if TYPE_CHECKING:  # A command reports a wrong folder before it imports what takes long.
    from transformer_mt.training.progress import Progress

TERMINAL_LOG = "train.log"
# The translations of this number of newest validations are kept, and those of the best ones.
KEPT_HYPOTHESES = 5
# The names of the files that VisualDL and TensorBoard read.
EVENT_FILES = {"visualdl": r"vdlrecords\..*", "tensorboard": r"events\.out\.tfevents\..*"}
# The folders of files that a run writes, and the names of these files.
_FOLDERS = {
    "held_out": rf"{CHECKSUMS}|(general_)?(dev|test)\.[^.]+",
    BASE: rf"{CHECKSUMS}|{re.escape(WEIGHTS)}",
    "dev": rf"source|reference|{HYPOTHESIS.pattern}",
    **EVENT_FILES,
}
# What a run writes before its first checkpoint. A run that begins again writes the same.
_FIRST_FILES = {
    *(CONFIG, VERSION, CHECKSUMS, LOG, TERMINAL_LOG, DATA_FACTS, "checkpoints", *_FOLDERS),
    *("subword.model", "subword.source.model", "subword.target.model", "subword.txt"),
}
# What a run writes later.
_LATER_FILES = {
    *("best", "test.source", "test.reference", "test.hypothesis", "test.before"),
    *("general_test.source", "general_test.reference", "general_test.hypothesis"),
    "general_test.before",
    *(REPORT, MODEL_CARD, TUNING, SHORTLIST),
}
# What exists only while this program runs: its lock, its workers' folder, incomplete files.
_TEMPORARY = re.compile(r"\.lock|\.workers|\..+\.(tmp|old)")


class RunDirectory(ModelDirectory):
    """A model directory that a run writes into."""

    # The folder in it through which the processes of a run communicate.
    WORKERS = ".workers"
    _lock: int | None = None  # the descriptor of the lock, while this process holds it

    # ---------------------------------------------------------------------------- the claim

    def claim(self, restart: bool = False) -> None:
        """Makes the directory and locks it for this process.

        The folder must be empty, or hold a run that can be resumed. With `restart` it may hold any
        run, which `start` then renames.

        Raises:
            UserError: another process has locked it, or it can't be made.
            UsageError: it holds something that is not such a run.
        """
        self.lock()
        try:
            self.require_own(restart)
        except BaseException:
            self.release()
            raise
        _delete(self.path / self.WORKERS)  # a killed run may have left it

    def lock(self) -> None:
        """Makes the directory and locks it for this process, whatever it holds.

        Raises:
            UserError: another process has locked it, or it can't be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = open_locked(self.path / ".lock", os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                self.lock()  # the process that held the lock has just removed the empty folder
        except BlockingIOError:
            raise UserError(
                f"{self.path} is in use by another process that trains into it. Wait for it, or "
                "give another model_dir=FOLDER"
            ) from None
        except OSError as error:
            raise UserError(f"model_dir: {self.path}: {error.strerror}") from None

    def release(self) -> None:
        """Unlocks the directory, and removes it if nothing was written into it."""
        if self._lock is None:
            return
        if not self.holds_run:
            (self.path / ".lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # something else may be in it
                self.path.rmdir()
        os.close(self._lock)
        self._lock = None

    def require_own(self, restart: bool) -> None:
        """Raises the errors of `claim` that concern the content of the directory."""
        names = {entry.name for entry in self.path.iterdir() if not _is_temporary(entry)}
        # A process that was killed may have written no more than the first file.
        if not names or (names == {VERSION} and self.version == str(FORMAT_VERSION)):
            return
        if not self.holds_run:
            shown = ", ".join(sorted(names)[:3]) + (" ..." if len(names) > 3 else "")
            raise UsageError(
                f"model_dir: {self.path} is not empty and holds no run of this program ({shown}). "
                "Nothing in it was touched. Give another model_dir=FOLDER"
                + (", or put its config.yaml back" if self.checkpoints.is_dir() else "")
            )
        if restart:
            if os.path.lexists(self._aside) and not ModelDirectory(self._aside).holds_run:
                raise UsageError(
                    f"{self._aside} holds no run of this program, and --restart needs the name. "
                    "Rename it"
                )
            return
        self.require_inside()
        self.load_config()  # raises if it is damaged, or of another version
        if not self.saved_checkpoints() and (others := self._more_than_a_beginning()):
            raise UsageError(
                f"{self.path} holds a run without a checkpoint to continue from, but with "
                f"{', '.join(others[:3])}. Give another model_dir=FOLDER; --restart renames "
                "this one and trains from the beginning"
            )

    def _more_than_a_beginning(self) -> list[str]:
        """Returns the names of what a run has not before its first checkpoint."""
        names = {path.name for path in entries(self.path) if not _is_temporary(path)}
        inside = [path for path in entries(self.checkpoints) if not _is_temporary(path)]
        return sorted(names - _FIRST_FILES) + [f"checkpoints/{path.name}" for path in inside]

    def require_inside(self) -> None:
        """Checks the links in the directory.

        Raises:
            UserError: a file or folder of the run is a link that leads out of the directory.
        """
        for entry in entries(self.path):
            if entry.name in _FIRST_FILES | _LATER_FILES | {"export"}:
                self.own(entry.name)
        for folder in (self.path / name for name in ("checkpoints", "export", *_FOLDERS)):
            for entry in entries(folder):
                self.own(f"{folder.name}/{entry.name}")

    # ------------------------------------------------------------- the beginning of a run

    def start(self, config: Config, subwords: Subwords, held_out: list[Path]) -> None:
        """Renames an earlier run, and writes the first files of a new one.

        Of a run that was killed before its first checkpoint, the files are replaced.

        Raises:
            UserError: the earlier run can't be renamed, or has links out of the directory.
        """
        if self._more_than_a_beginning():
            self._put_aside()
        else:
            self.require_inside()
            for name in _FOLDERS:
                self._emptied(name)
            for name in _FIRST_FILES - {CONFIG, VERSION, "checkpoints", *_FOLDERS}:
                (self.path / name).unlink(missing_ok=True)
        # These two come first: they mark the directory as that of a run, whenever it is stopped.
        write_atomically(self.path / VERSION, f"{FORMAT_VERSION}\n")
        write_atomically(self.path / CONFIG, sealed(config_file.dump(config)))
        subwords.save(self.path)
        write_checksums(self.path, SUBWORDS)
        self.checkpoints.mkdir(exist_ok=True)
        self.take_held_out(held_out)

    def resume(self, config: Config, progress: "Progress", held_out: list[Path]) -> None:
        """Restores the state in which the directory was when a checkpoint was saved.

        The config is replaced, because some of its settings may have changed.

        Args:
            config: the config of the resumed run.
            progress: the progress that the checkpoint holds.
            held_out: as in `take_held_out`.
        """
        write_atomically(self.path / CONFIG, sealed(config_file.dump(config)))
        for leftover in entries(self.checkpoints):
            if _is_temporary(leftover):
                _delete(leftover)
        last = dict.fromkeys(("origin", "start", "samples", "train", "skipped"), progress.step)
        last["dev"] = last["general_dev"] = progress.validated
        kept = [
            json.dumps(line) + "\n"
            for line in self.logged()
            if line.get("step", 0) <= last.get(str(line.get("kind")), -1)
        ]
        write_atomically(self.path / LOG, "".join(kept))
        for path in entries(self.path / "dev"):
            match = HYPOTHESIS.fullmatch(path.name)
            if match and int(match[1]) > progress.validated:
                _delete(path)
        best = [self.checkpoints / f"step_{step}" for step in progress.best_steps]
        self.set_best(best[0] if best else None)
        self.take_held_out(held_out)

    def take_held_out(self, files: list[Path]) -> None:
        """Copies the files of held-out pairs, unless undamaged copies exist."""
        if not files or (self.held_out.is_dir() and verify(self.held_out) is None):
            return
        self.held_out.mkdir(exist_ok=True)
        for path in files:
            shutil.copyfile(path, self.held_out / path.name)
        write_checksums(self.held_out)

    @property
    def _aside(self) -> Path:
        """The name that --restart gives to the run that was here."""
        path = Path(os.path.realpath(self.path))
        return path.with_name(f"{path.name}.before-restart")

    def _put_aside(self) -> None:
        """Renames the directory with all that is in it, and makes a new one of its name, which is
        locked from its beginning. One earlier directory is kept."""
        aside = self._aside
        path = aside.with_name(os.path.basename(os.path.realpath(self.path)))
        new, old = (
            aside.with_name(f".{name}.{os.getpid()}.tmp") for name in (path.name, aside.name)
        )
        clear_leftovers(path.parent, path.name)
        clear_leftovers(path.parent, aside.name)
        lock = None
        try:
            new.mkdir()
            lock = open_locked(new / ".lock", os.O_RDWR | os.O_CREAT)
            if aside.exists():
                aside.rename(old)
            path.rename(aside)
            new.rename(path)
        except OSError as error:
            if lock is not None:
                os.close(lock)
            shutil.rmtree(new, ignore_errors=True)
            if aside.exists() and not path.exists():
                aside.rename(path)
            raise UserError(
                f"{self.path}: can't be renamed to {aside.name}: {error.strerror}. Nothing in it "
                "was changed; give another model_dir=FOLDER"
            ) from None
        os.close(self._lock)
        self._lock = lock
        shutil.rmtree(old, ignore_errors=True)
        say(f"the earlier run is in {aside} now; the next --restart replaces it")

    # ------------------------------------------------------------------------ during a run

    def log(self, *, kind: str, **values: Any) -> dict[str, Any]:
        """Appends a line to metrics.jsonl, with the time, and returns it. Numbers that are not
        finite become null, because JSON cannot represent them."""
        time = datetime.now().astimezone().isoformat(timespec="seconds")
        values = {"kind": kind, "time": time} | {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in values.items()
        }
        try:
            with open(self.path / LOG, "a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise UserError(f"{self.path / LOG}: {error.strerror}") from None
        return values

    def keep_terminal_log(self) -> None:
        """Appends all that is printed to train.log from now on, and what was printed before."""
        console.keep_log(self.own(TERMINAL_LOG))

    def event_folders(self, kinds: Iterable[str]) -> dict[str, Path]:
        """Returns the folders of the files for VisualDL and TensorBoard. Those of an earlier part
        of the run are deleted in them, because metrics.jsonl holds all that was in them.

        Args:
            kinds: the value of training.log_to.
        """
        folders = {kind: self._emptied(kind) for kind in EVENT_FILES}
        return {kind: folders[kind] for kind in kinds}

    def _emptied(self, name: str) -> Path:
        folder = self.own(name)
        for path in entries(folder):
            if re.fullmatch(_FOLDERS[name], path.name):
                _delete(path)
        return folder

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Writes a text file, such as dev/source."""
        path = self.own(name)
        path.parent.mkdir(exist_ok=True)
        with atomic(path) as file:
            file.writelines(map(as_line, lines))

    def keep_hypotheses(self, hypotheses: list[str], step: int, best: Iterable[int]) -> None:
        """Writes the translations of a validation to dev/step_N.hypothesis, and deletes old ones.

        Args:
            best: the steps of the best validations, whose translations are kept.
        """
        self.write_lines(f"dev/step_{step}.hypothesis", hypotheses)
        matches = (HYPOTHESIS.fullmatch(path.name) for path in entries(self.path / "dev"))
        steps = sorted(int(match[1]) for match in matches if match)
        for old in set(steps[:-KEPT_HYPOTHESES]) - set(best):
            _delete(self.path / "dev" / f"step_{old}.hypothesis")

    def write_shortlist(self, shortlist: Shortlist, subwords: Subwords) -> None:
        """Writes the shortlist of the subwords, which `load_shortlist` reads."""
        write_atomically(self.own(SHORTLIST), sealed(shortlist.text(subwords)))

    def set_best(self, checkpoint: Path | None) -> None:
        """Writes which checkpoint to translate with; None is the last one."""
        if checkpoint is None:
            (self.path / "best").unlink(missing_ok=True)
        else:
            write_atomically(self.path / "best", named(checkpoint))


def _is_temporary(path: Path) -> bool:
    return _TEMPORARY.fullmatch(path.name) is not None


def _delete(path: Path) -> None:
    """Deletes a file, a link (but not what it leads to), or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
