"""What a newcomer types: all commands of the first page and of the tutorials, in their order.

Each page is followed in a folder of its own that looks like a fresh clone whose environment is
ready. The commands are typed as they stand. The recipes in that folder train for a few steps only,
and the corpora are small.
"""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.conftest import SHARED_DATA
from tests.docs.pages import ROOT, Page, commands, find_page, parse, project_files

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
PAIRS = 400
# The demo corpus, shortened.
DEMO_LINES = {"train": PAIRS, "dev": 20, "test": 20}
TIMEOUT = 300
MADE = {
    "README.md": [
        "runs/demo/test.hypothesis",
        "runs/demo/export/ctranslate2_int8",
        "translated.de",
        "runs/my/test.hypothesis",
    ],
    "docs/text-to-page.md": ["runs/my/report.html", "runs/my/export/ctranslate2_int8/card.json"],
    "docs/tutorial.md": ["runs/my/test.hypothesis", "attention.html", "dev.en", "deployed.en"],
    "docs/tutorial.zh.md": ["runs/my/test.hypothesis", "attention.html", "dev.en", "deployed.en"],
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
                    self.edit(page, command)

    def type(self, command: list[str]) -> None:
        with self.started(command) as process:
            output = process.communicate(timeout=TIMEOUT)[0].decode("utf-8", "replace")
        assert process.returncode == 0, f"{command[-1]}\n{output}"
        assert "Traceback" not in output, f"{command[-1]}\n{output}"

    def serve(self, command: str) -> None:
        """Starts a service on a free port, opens its page, and stops it."""
        with self.started(["bash", "-c", f"exec {command} --port 0"]) as process:
            try:
                line = process.stdout.readline().decode()
                match = re.search(r"http://\S+:(\d+) serves", line)
                assert match, f"{command}\n{line}"
                with urllib.request.urlopen(f"http://127.0.0.1:{match[1]}/", timeout=60) as page:
                    assert b"<html" in page.read()
                process.terminate()
                process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 0, command

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

    def edit(self, page: Page, command: str) -> None:
        """After `cp configs/RECIPE COPY`, edits the copy as the page's table of keys says. After
        `new RECIPE`, shortens its training."""
        words = command.split()
        if words[0] == "cp" and words[1].startswith("configs/"):
            edit_recipe(self.folder / words[2], asked_edits(page))
        elif "new" in words[:4]:
            edit_recipe(self.folder / words[words.index("new") + 1], {})


def asked_edits(page: Page) -> dict[str, object]:
    """The keys and values of the first table whose first column names config keys and whose last
    column holds values, such as {"data.root": "corpus"}."""
    for table in page.tables:
        rows = [(row[0].strip("`"), re.fullmatch(r"`([^`]*)`", row[-1])) for row in table[1:]]
        if all(re.fullmatch(r"model_dir|[a-z_]+\.[a-z_]+", key) and value for key, value in rows):
            return {key: yaml.safe_load(value[1]) for key, value in rows}
    return {}


def edit_recipe(path: Path, edits: dict[str, object]) -> None:
    """Changes values of a recipe, and shortens its training."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key, value in edits.items():
        section, _, name = key.rpartition(".")
        (values[section] if section else values)[name] = value
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
        edit_recipe(recipe, {})
    for split, count in DEMO_LINES.items():
        for lang in ("en", "de"):
            shorten(folder / "data" / "demo" / f"{split}.{lang}", count)
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


def shorten(path: Path, count: int) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:count]), encoding="utf-8")


def add_corpus(folder: Path, source_lang: str) -> None:
    """What a newcomer has: corpus/train.LANG and corpus/train.en, and pairs.tsv with four columns,
    as Tatoeba gives it. Without the real corpora, the demo corpus is used for every language."""
    corpus = SHARED_DATA / f"tatoeba_{source_lang}-en"
    paths = [corpus / f"train.{lang}" for lang in (source_lang, "en")]
    if not corpus.is_dir():
        paths = [ROOT / "data" / "demo" / f"train.{lang}" for lang in ("de", "en")]
    sides = [path.read_text(encoding="utf-8").split("\n")[:PAIRS] for path in paths]
    (folder / "corpus").mkdir()
    for lang, lines in zip((source_lang, "en"), sides, strict=True):
        text = "".join(f"{line}\n" for line in lines)
        (folder / "corpus" / f"train.{lang}").write_text(text, encoding="utf-8")
    rows = [
        f"{number}\t{source}\t{number + 7}\t{target}\n"
        for number, (source, target) in enumerate(zip(*sides, strict=True))
    ]
    (folder / "pairs.tsv").write_text("".join(rows), encoding="utf-8")


needs_environment = pytest.mark.skipif(
    not (Path(sys.prefix) / "pyvenv.cfg").exists(), reason="not in a virtual environment"
)


@pytest.mark.slow
@needs_environment
@pytest.mark.parametrize(
    ("name", "lang"),
    [
        ("README.md", "de"),
        ("docs/text-to-page.md", "de"),
        ("docs/tutorial.md", "de"),
        ("docs/tutorial.zh.md", "zh"),
    ],
)
def test_the_commands_of_a_page_work(name, lang, tmp_path):
    folder = tmp_path / "transformer_mt"
    folder.mkdir()
    make_clone(folder)
    add_corpus(folder, lang)
    Newcomer(folder).follow(find_page(name))
    assert [made for made in MADE[name] if not (folder / made).exists()] == []


@pytest.mark.parametrize("text", ["ls b", "echo Traceback"])
def test_commands_that_fail_are_noticed(text, tmp_path):
    Newcomer(tmp_path).follow(parse("```bash\necho a > b\nls b\n```"))
    (tmp_path / "b").unlink()
    with pytest.raises(AssertionError):
        Newcomer(tmp_path).follow(parse(f"```bash\n{text}\n```"))


@needs_environment
def test_a_clone_is_ready_and_its_recipes_are_edited(tmp_path):
    make_clone(tmp_path)
    code = "import transformer_mt as t; print(t.__file__)"
    path = subprocess.check_output([".venv/bin/python", "-c", code], cwd=tmp_path, text=True)
    assert path.strip() == str(tmp_path / "transformer_mt" / "__init__.py")
    page = parse(
        "| key | default |\n| --- | --- |\n| `a` | none |\n\n"
        "| key | what | here |\n| --- | --- | --- |\n"
        "| `model_dir` | x | `runs/x` |\n| `data.dev` | y | `null` |\n"
    )
    Newcomer(tmp_path).follow(parse("```bash\ncp configs/template.yaml my.yaml\n```"))
    Newcomer(tmp_path).edit(page, "cp configs/template.yaml my.yaml")
    values = yaml.safe_load((tmp_path / "my.yaml").read_text("utf-8"))
    assert values["model_dir"] == "runs/x" and values["data"]["dev"] is None
    assert values["training"]["max_steps"] == 40
