"""What a newcomer types: all commands of the first page and of the tutorial, in their order.

Each page is followed in a folder of its own that looks like a fresh clone whose environment is
ready. The commands are typed as they stand. The recipes in that folder train for a few steps only,
and the corpora are small.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.pages import ROOT, Page, commands, find_page, parse, project_files
from tests.support import demo_pairs, write_lines, write_pairs

# In place of the recipe's own values, where it has these keys. With fewer steps, there would not be
# as many checkpoints as the recipes average.
SHORT = {
    "max_steps": 40,
    "batch_tokens": 800,
    "device_tokens": 800,
    "warmup_steps": 10,
    "log_every": 10,
    "validate_every": 20,
    "save_every": 8,
}
# The demo corpus, shortened.
LINES = {"train": 400, "dev": 20, "test": 20}
TIMEOUT = 300
MADE = {
    "README.md": ["runs/demo/test.hypothesis", "translated.de", "runs/my/test.hypothesis"],
    "docs/tutorial.md": ["runs/my/test.hypothesis", "attention.html", "dev.en", "deployed.en"],
}


class Newcomer:
    """Types the commands of a page in a folder, and runs its Python."""

    def __init__(self, folder: Path):
        self.folder = folder

    def follow(self, page: Page) -> None:
        for block in page.blocks:
            if block.language == "python":
                self.type([".venv/bin/python", "-c", block.text])
            for command in commands(block.text) if block.language == "bash" else ():
                if " serve " in command:
                    self.serve(command)
                else:
                    self.type(["bash", "-c", command])
                    words = command.split()
                    if "new" in words[:4]:
                        shorten(self.folder / words[words.index("new") + 1])

    def type(self, command: list[str]) -> None:
        with self.started(command) as process:
            output = process.communicate(timeout=TIMEOUT)[0].decode("utf-8", "replace")
        assert process.returncode == 0, f"{command[-1]}\n{output}"
        assert "Traceback" not in output, f"{command[-1]}\n{output}"

    def serve(self, command: str) -> None:
        """Starts a service on a free port, and stops it."""
        with self.started(["bash", "-c", f"exec {command} --port 0"]) as process:
            line = process.stdout.readline().decode()
            process.kill()
        assert re.search(r"http://\S+:\d+ serves", line), f"{command}\n{line}"

    def started(self, command: list[str]) -> subprocess.Popen:
        unwanted = ("PYTHON", "TESTS_", "TRANSFORMER_MT_", "FLAGS_", "OMP_", "OPENBLAS_")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(unwanted)},
            "PYTHONPATH": str(self.folder),  # the copy of the package, from any folder
            "PIP_NO_INDEX": "1",  # nothing is downloaded
            "LC_ALL": "C.UTF-8",
        }
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def shorten(path: Path) -> None:
    """Shortens the training of a recipe."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key, value in SHORT.items():
        if key in values["training"] or key == "log_every":
            values["training"][key] = value
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


# ---- A fresh clone ----


def make_clone(folder: Path) -> None:
    """A copy of what the commands need, with links to this environment, ready to be used."""
    wanted = ("scripts/", "transformer_mt/", "configs/", "data/", "requirements")
    for name in project_files():
        if name.startswith(wanted) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for recipe in (folder / "configs").glob("*.yaml"):
        shorten(recipe)
    for split, count in LINES.items():
        for lang in ("en", "de"):
            path = folder / "data" / "demo" / f"{split}.{lang}"
            write_lines(path, path.read_text(encoding="utf-8").split("\n")[:count])
    (folder / ".venv").mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name not in (".setup_stamp", "setup.log", "tmp"):
            (folder / ".venv" / entry.name).symlink_to(entry)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stamp = (
        f'. scripts/setup.sh; echo cpu {version} "$(sum_of requirements.txt requirements.txt)" '
        '"$(sum_of requirements-dev.txt)" "$root" '
        '>"$stamp"; dev=no; look; echo "$plan $why"'
    )
    done = subprocess.run(["bash", "-c", stamp], cwd=folder, capture_output=True, text=True)
    # Otherwise the commands would install packages into the environment that the tests run in.
    assert done.stdout == "ready \n", done.stdout + done.stderr


def add_corpus(folder: Path) -> None:
    """What a newcomer has: corpus/train.de and corpus/train.en, and pairs.tsv with four columns, as
    Tatoeba gives it."""
    pairs = demo_pairs(LINES["train"])
    write_pairs(folder / "corpus", "train", pairs)
    rows = [f"{number}\t{de}\t{number + 7}\t{en}" for number, (en, de) in enumerate(pairs)]
    write_lines(folder / "pairs.tsv", rows)


@pytest.mark.slow
@pytest.mark.skipif(
    not (Path(sys.prefix) / "pyvenv.cfg").exists(), reason="not in a virtual environment"
)
@pytest.mark.parametrize("name", MADE)
def test_the_commands_of_a_page_work(name, tmp_path, pytestconfig):
    if name != "README.md" and not pytestconfig.getoption("--attack"):
        pytest.skip("runs with --attack")
    folder = tmp_path / "transformer_mt"
    folder.mkdir()
    make_clone(folder)
    add_corpus(folder)
    Newcomer(folder).follow(find_page(name))
    assert [made for made in MADE[name] if not (folder / made).exists()] == []


def test_the_tutorials_have_the_same_commands():
    """Except for the languages. So the Chinese one is not followed."""

    def commands_of(name: str) -> list[str]:
        blocks = find_page(name).blocks_in("bash")
        found = [command for block in blocks for command in commands(block.text)]
        return [re.sub(r'(?<=[. ])(zh|de)\b|"[^"]*"', "", command) for command in found]

    assert commands_of("docs/tutorial.md") == commands_of("docs/tutorial.zh.md")


def test_commands_that_fail_are_noticed(tmp_path):
    for text in ("ls b", "echo Traceback"):
        with pytest.raises(AssertionError):
            Newcomer(tmp_path).follow(parse(f"```bash\n{text}\n```"))
