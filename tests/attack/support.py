"""What the attacks share: commands run in great numbers, and what no answer to them may be."""

from __future__ import annotations

import hashlib
import json
import resource
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import examples, make_config, python, write_pairs
from transformer_mt.config.file import dump
from transformer_mt.utils.folders import sealed, write_checksums

# Seconds that a command of a tiny model may take on a busy machine.
PATIENCE = 240
# Subwords of the longest source that the models read: hostile lines are longer.
MAX_LENGTH = examples(60, 256)


@dataclass(frozen=True)
class Answer:
    """What came of a command; a negative code is the signal that killed it."""

    arguments: tuple[str, ...]
    code: int
    stdout: str
    stderr: str

    def require_clear(self) -> None:
        """Fails unless the command has succeeded, or has said in words what is wrong."""
        said = f"{' '.join(self.arguments)}\n{self.code}\n{self.stderr}"
        assert self.code in (0, 1, 2), said
        assert "Traceback" not in self.stderr and "This should not happen" not in self.stderr, said
        assert self.code == 0 or "error: " in self.stderr, said
        assert not set(map(chr, (*range(9), *range(11, 32), 127))) & set(self.stderr) - {"\r"}, said


class Driver:
    """Runs commands in a process of their own (see driver.py), and begins another one if that is
    killed by what it is given."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        streams = {"stdin": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = python("-m", "tests.attack.driver", **streams)

    @contextmanager
    def limited(self, size: int) -> Iterator[None]:
        """Inside the block no file can be written beyond so many bytes, as on a full disk."""
        if self._process is None:
            self.start()
        limit = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, limit[1]))
        yield
        if self._process is not None:
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, limit)

    def run(self, *arguments: object, stdin: bytes = b"") -> Answer:
        if self._process is None:
            self.start()
        words = tuple(str(argument) for argument in arguments)
        print(json.dumps({"arguments": words, "stdin": stdin.hex()}), file=self._process.stdin)
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            self.close()
            raise AssertionError(f"{' '.join(words)}: no end in {PATIENCE} s")
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self.close()
            return Answer(words, code, "", "")
        return Answer(words, **json.loads(line))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def write_recipe(folder: Path, train: list, dev: list, test: list, **sections) -> Path:
    """A config file of a tiny model that one process trains, beside its text."""
    for name, pairs in (("train", train), ("dev", dev), ("test", test)):
        write_pairs(folder / "text", name, pairs)
    data = {"dev": "dev", "test": "test", "held_out": 0}
    sections["training"] = {"devices": 1, **sections["training"]}
    path = folder / "recipe.yaml"
    path.write_text(dump(make_config(folder, data=data, **sections)), encoding="utf-8")
    return path


def files_of(folder: Path) -> list[Path]:
    """All files of a folder but empty ones, such as locks."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if path.stat().st_size)


def read_by_training(run: Path) -> list[Path]:
    """The files of a run of the recipe that decide how a training goes on with it. It writes the
    others, and only its report reads some of them; the tests of the command `report` damage
    those."""
    written = {"visualdl", "dev", "report.html", "README.md", "train.log", "step_3"}
    written |= {f"test.{side}" for side in ("source", "reference", "hypothesis")}
    return [path for path in files_of(run) if not written & {*path.relative_to(run).parts}]


def make_right(path: Path) -> None:
    """Gives a changed file right checksums, as somebody would who has changed it on purpose."""
    if path.name == "config.yaml" and b"# SHA-256" in path.read_bytes():
        text = path.read_bytes().decode("utf-8", "replace").rpartition("# SHA-256")[0]
        path.write_text(sealed(text), encoding="utf-8")
    sums = path.with_name("SHA256SUMS")
    if sums.is_file() and sums != path:
        pattern = "subword.*" if (path.parent / "checkpoints").is_dir() else "[!.]*"
        write_checksums(path.parent, pattern)
    model = path.parent.parent.parent
    best = model / "best"
    if path.parent.parent.name == "checkpoints" and best.is_file():
        name = Path(best.read_text().split()[1]).parent.name
        content = (model / "checkpoints" / name / "SHA256SUMS").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        best.write_text(f"{digest}  checkpoints/{name}/SHA256SUMS\n")
