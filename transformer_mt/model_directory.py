"""The model directory: everything of one run. It can be moved, and is safe to open.

config.yaml          the resolved config; its last line is its checksum
format_version       the version of this layout
subword.model        (or subword.source.model and subword.target.model, or subword.txt)
subword.json         the ids of an imported model (or subword.source.json and subword.target.json)
SHA256SUMS           checksums of the subword model
checkpoints/step_N/  model.safetensors, the state of training, and their checksums
base/                with adapters, the weights that they are added to; the checkpoints have none
best                 the checkpoint to translate with: the best one, an average, or a mix
metrics.jsonl        one line per logged step, validation and score
train.log            what the terminal has shown
data.json            facts about the training text
held_out/            dev and test pairs, if they were taken from the training text
dev/                 the dev set, and its translations at the newest validations and the best ones
visualdl/            metrics.jsonl for VisualDL; tensorboard/ for TensorBoard
test.source          the test set (also test.reference) and its translation at the end of training
test.hypothesis
test.before          its translation by the model before fine-tuning
general_test.*       the same of data.general_test
report.html          the report of the run
README.md            the model card
shortlist.tsv        the likely translations of each source subword; its last line is its checksum
tune.json            the decoding settings that `tune` tried, and its choice
export/              the model in other formats, where it was exported to them

No file in it can run code when it is read, and links that lead out of it are not followed. This
module reads a model directory; training/folder.py writes one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_mt.config import file as config_file
from transformer_mt.config.schema import Config
from transformer_mt.utils.console import quoted, visible, warn
from transformer_mt.utils.errors import UsageError, UserError
from transformer_mt.utils.files import UNREADABLE, byte_lines, require_distinct
from transformer_mt.utils.folders import CHECKSUMS, is_sealed, listed, verify

if TYPE_CHECKING:
    from transformer_mt.data.shortlist import Shortlist
    from transformer_mt.data.subword import Subwords

FORMAT_VERSION = 2
CONFIG = "config.yaml"
LOG = "metrics.jsonl"
REPORT = "report.html"
MODEL_CARD = "README.md"
TUNING = "tune.json"
SHORTLIST = "shortlist.tsv"
DATA_FACTS = "data.json"
VERSION = "format_version"
SUBWORDS = "subword.*"
# The file of an export that names its checkpoint, as `best` does.
MADE_OF = "checkpoint"
# The names of checkpoints.
STEP = re.compile(r"step_\d+")
# The translations of the dev set at a validation, in the folder dev.
HYPOTHESIS = re.compile(r"step_(\d+)\.hypothesis")
# The names of averages and mixes.
MADE = re.compile(r"average_(?:last|best)_\d+|mix_\d+")
# The model before fine-tuning, in the directory of the fine-tuned one.
START = "step_0"
# What belongs to a run or to an export besides the files that SHA256SUMS lists. report.html is not
# among it, because nothing reads it and `report` writes it again; nor is the content of export/.
_OWN = re.compile(
    rf"{re.escape(CONFIG)}|{VERSION}|subword\..*|{CHECKSUMS}|checkpoints|best|{re.escape(LOG)}|"
    rf"train\.log|{re.escape(DATA_FACTS)}|held_out|base|dev|visualdl|tensorboard|"
    rf"(?:general_)?test\.(source|reference|hypothesis|before)|{re.escape(MODEL_CARD)}|"
    rf"{re.escape(TUNING)}|{re.escape(SHORTLIST)}|export|\.lock"
)
_CHECKPOINT = rf"{STEP.pattern}|{MADE.pattern}"
_NAMED = re.compile(rf"([0-9a-f]{{64}})  checkpoints/({_CHECKPOINT})/{CHECKSUMS}\n")


class ModelDirectory:
    """Reads a model directory; nothing is read before it is needed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.held_out = self.path / "held_out"

    def own(self, name: str) -> Path:
        """Returns the path of a file or folder of the directory.

        Raises:
            UserError: it is a link that leads out of the directory.
        """
        path = self.path / name
        place = Path(os.path.realpath(path))  # Path.resolve fails at a loop of links
        if not place.is_relative_to(os.path.realpath(self.path)):
            raise UserError(
                f"{path} is a link to a place outside of the model directory, {place}, "
                "and is not followed. Put a copy of what it leads to in its place"
            )
        return path

    @property
    def version(self) -> str:
        """The content of format_version, made printable; empty if there is no such file."""
        return _first_line(self.own(VERSION), 20)

    @property
    def has_edited_card(self) -> bool:
        """Whether the model card is a person's: one that was edited, or written by hand."""
        card = self.own(MODEL_CARD)
        return card.is_file() and not is_sealed(card.read_bytes())

    @property
    def holds_run(self) -> bool:
        """Whether this is a model directory, of any version. A config.yaml alone is not enough,
        because it may be another program's."""
        return (self.path / CONFIG).is_file() and self.version.isdecimal()

    def load_config(self, overrides: Iterable[str] = ()) -> Config:
        """Reads the config.

        Args:
            overrides: settings that replace those of the file, as `section.key=value`.

        Raises:
            UserError: it is damaged.
            UsageError: this is not a model directory of this version, or an override is wrong.
        """
        path = self.own(CONFIG)
        if not path.is_file():
            what = "config.yaml in it" if self.path.exists() else "such folder"
            raise UsageError(f"{self.path} is not a model directory (there is no {what})")
        version = self.version
        if version != str(FORMAT_VERSION):
            raise UsageError(
                f"{self.path}: format version {version or 'none'}, this program reads "
                f"{FORMAT_VERSION}"
            )
        if not is_sealed(path.read_bytes()):
            raise UserError(
                f"{path}: damaged, or edited: its checksum, the last line, is that of another "
                "text. Restore the original file; decoding can be changed with flags such as "
                "--beam-size"
            )
        return config_file.load(path, overrides)

    def load_subwords(self) -> Subwords:
        """Reads the subwords of both sides.

        Raises:
            UserError: they are missing or damaged.
        """
        if problem := verify(self.path, SUBWORDS):
            raise UserError(f"{self.path}: the subword model is damaged ({problem})")
        from transformer_mt.data.subword import Subwords  # it imports SentencePiece

        return Subwords.load(self.path)

    def load_shortlist(self, subwords: Subwords) -> Shortlist:
        """Reads the shortlist of the subwords.

        Raises:
            UsageError: there is none.
            UserError: it is damaged, or it is one for other subwords.
        """
        from transformer_mt.data.shortlist import Shortlist

        path = self.own(SHORTLIST)
        make = f"python -m transformer_mt shortlist {quoted(self.path)}"
        if not path.is_file():
            raise UsageError(f"{self.path} has no shortlist. Make one with: {make}")
        content = path.read_bytes()
        try:
            if not is_sealed(content):
                raise ValueError("its checksum, the last line, is that of another text")
            text, _, _ = content.decode("utf-8").removesuffix("\n").rpartition("\n")
            return Shortlist.read(text, subwords)
        except ValueError as error:
            raise UserError(
                f"{path}: damaged, or edited: {error}. Make it again with: {make}"
            ) from None

    def saved_checkpoints(self) -> list[Path]:
        """Returns the checkpoints of steps, oldest first.

        Raises:
            UserError: one of them is a link that leads out of the directory.
        """
        names = [path.name for path in entries(self.checkpoints) if STEP.fullmatch(path.name)]
        names.sort(key=lambda name: int(name.removeprefix("step_")))
        return [self.own(f"checkpoints/{name}") for name in names]

    def trained_checkpoints(self) -> list[Path]:
        """Returns `saved_checkpoints` without the model before fine-tuning."""
        return [path for path in self.saved_checkpoints() if path.name != START]

    def logged(self) -> Iterator[dict[str, Any]]:
        """Yields the complete lines of metrics.jsonl. The last line is incomplete while a process
        writes it, or if the process was killed then."""
        path = self.own(LOG)
        for line in byte_lines(path) if path.is_file() else ():
            with contextlib.suppress(ValueError, RecursionError):
                values = json.loads(line)
                if isinstance(values, dict) and isinstance(values.get("step", 0), int):
                    yield values

    def named_checkpoints(self) -> list[Path]:
        """Returns the checkpoints of steps, and then the averages and mixes of them."""
        made = [path for path in entries(self.checkpoints) if MADE.fullmatch(path.name)]
        return [*self.saved_checkpoints(), *made]

    def best(self) -> Path | None:
        """Returns the checkpoint that `best` names; None if there is no such file.

        If the file is damaged, or the checkpoint is gone or has changed, warns and returns None.
        """
        path = self.own("best")
        if not path.exists():
            return None
        match = _NAMED.fullmatch(_first_line(path, 200) + "\n")
        if match is not None:
            chosen = self.checkpoints / match[2]
            if chosen in self.named_checkpoints() and _hash_of(chosen) == match[1]:
                return chosen
        warn(
            f"{path}: damaged, or its checkpoint is gone or has changed; the last checkpoint "
            "takes its place"
        )
        return None

    def checkpoint(self, name: str | None = None) -> Path:
        """Returns a checkpoint by its name.

        Args:
            name: step_N, average_KIND_N, mix_P, best or last. None is the same as best, which is
                the last one while no best is known.

        Raises:
            UsageError: there is no checkpoint of that name.
            UserError: it is a link that leads out of the directory.
        """
        self.own("checkpoints")
        saved = self.saved_checkpoints()
        from transformer_mt.weights import ADAPTERS  # it imports NumPy

        if not saved and (self.path / ADAPTERS).is_file():
            raise UsageError(
                f"{self.path} has adapters alone. Add them to the model that they were trained "
                f"for: python -m transformer_mt import {quoted(self.path)} NEW_DIR --base MODEL_DIR"
            )
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


def require_safe_outputs(
    written: dict[str, Path | int | None], read: dict[str, Path | int | None]
) -> None:
    """Checks that no output replaces a file that is read, another output, or a file of a model
    directory or an export. Every command checks its outputs with this function.

    Args:
        written, read: as in `require_distinct`.

    Raises:
        UsageError: an output does, or can't be written because of its name or of a loop of links.
    """
    require_distinct(written, read)
    for name, file in written.items():
        if file is None:
            continue
        if not isinstance(file, int) and file.suffix.lower() in UNREADABLE:
            raise UsageError(
                f"{name} {file}: {file.suffix} files can't be written. Give a name without this "
                "ending, or with .gz, .bz2 or .xz"
            )
        path = Path(f"/proc/self/fd/{file}" if isinstance(file, int) else file)
        path = Path(os.path.realpath(path))
        if path.is_symlink():
            raise UsageError(f"{name} {file}: a loop of links, which leads to no file")
        folder = next((folder for folder in path.parents if _is_model(folder)), None)
        if folder is None:
            continue
        own = path.relative_to(folder)
        in_export = len(own.parts) > 1 and own.parts[0] == "export"
        if not in_export and (_OWN.fullmatch(own.parts[0]) or own.parts[0] in listed(folder)):
            called = name if isinstance(file, int) else f"{name} {file}"
            raise UsageError(
                f"{called}: {own.parts[0]} belongs to the model in {folder}, and would be lost. "
                "Write into another file"
            )


def _is_model(folder: Path) -> bool:
    """Whether the folder is a model directory or an export, of any version, even a damaged one."""
    return (folder / VERSION).is_file() and _first_line(folder / VERSION, 20).isdecimal()


def named(checkpoint: Path) -> str:
    """Returns a line that names a checkpoint and has the checksum of its list of checksums.

    `sha256sum --check` can verify it in the model directory.
    """
    return f"{_hash_of(checkpoint)}  checkpoints/{checkpoint.name}/{CHECKSUMS}\n"


def made_of_checkpoint(export: Path) -> str | None:
    """Returns the line of an export that names its checkpoint, in the form of `named`; None if the
    line is missing or damaged."""
    match = _NAMED.fullmatch(_first_line(export / MADE_OF, 200) + "\n")
    return match[0] if match else None


def texts(value: Any) -> list[str]:
    """Returns a list of texts of metrics.jsonl or data.json, which may come from anybody; an empty
    list if the value is anything else."""
    is_right = isinstance(value, list) and all(isinstance(text, str) for text in value)
    return value if is_right else []


def entries(folder: Path) -> list[Path]:
    """Returns what is in a folder, sorted; nothing if there is no such folder."""
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _hash_of(checkpoint: Path) -> str:
    try:
        return hashlib.sha256((checkpoint / CHECKSUMS).read_bytes()).hexdigest()
    except OSError:
        return ""


def _first_line(path: Path, length: int) -> str:
    """Returns the first `length` bytes of a text file as one printable line; empty if there is no
    such file."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        text = file.read(length).decode("utf-8", "replace").strip()
    return visible(text).replace("\n", "\\n")


def subwords_to_keep(config: Config) -> Subwords | None:
    """Returns the subwords of the model training.init_from; None if the config names no such model.

    Symbols that the config needs and the model lacks are added to them: `subword.user_symbols`, the
    tags of `data.train`, and the symbols of `data.protect` and `data.annotate_terms`. All other
    subwords keep their ids.

    Raises:
        UserError: the other model is damaged.
        UsageError: there is none, or its subwords can't be combined with the config.
    """
    other = config.training.init_from
    if other is None:
        return None
    directory = ModelDirectory(other)
    try:
        theirs, subwords = directory.load_config().subword, directory.load_subwords()
    except UserError as error:
        raise type(error)(f"training.init_from: {error}") from None
    # These are taken from this config. The vocabulary is in the other directory.
    own = "sampling", "user_symbols"
    changes: dict[str, Any] = {key: getattr(config.subword, key) for key in own}
    if theirs.type == "vocabulary":
        changes["vocabulary"] = str(directory.path / "subword.txt")
    theirs = theirs.model_copy(update=changes)
    config_file.require_together(
        config.model_copy(update={"subword": theirs}),
        f"training.init_from: {other}: its subwords do not go together with this config",
    )
    from transformer_mt.data.spans import symbols_of  # it imports SentencePiece

    symbols = [*config.tags, *symbols_of(config.data)]
    if theirs.type == "word":  # It is a word of the text, or unknown.
        return subwords
    try:
        return subwords.with_symbols(symbols)
    except UsageError as error:
        raise UsageError(f"training.init_from: {other}: {error}") from None
