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

# Lines of output that a page shows must look like those of the program, if they begin so. Others
# depend on the text and the model.
LABELS = re.compile(
    r"training (text|pairs|into|the)|data\.|(dev|test) pairs|(source|target) subwords|unknown  "
    r"|vocabulary  |model  |an update|estimated time|timing|step \d|(dev|test) set|BLEU|chrF"
    r"|done in|Next:|source  |translation  |reference  "
)
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
# Commands that are not typed, and why.
NOT_TYPED: dict[str, str] = {}
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
    """Types commands in a folder, and remembers what those of the last block have printed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.output = ""

    def follow(self, page: Page) -> None:
        """Types the commands of a page, runs its Python, and compares the output that it shows."""
        for block in page.blocks:
            if block.language == "bash":
                self.output = ""
                for command in commands(block):
                    if " serve " in command.text:
                        self.serve(command.text, page.place(command))
                    elif command.text not in NOT_TYPED:
                        self.type(["bash", "-c", command.text], page.place(command))
                        self.edit(page, command.text)
            elif block.language == "python":
                self.type([".venv/bin/python", "-c", block.text], page.place(block))
            elif block.language == "text":
                missing = missing_lines(block.text, self.output)
                assert missing == [], f"{page.place(block)}: not in\n{self.output}"

    def type(self, command: list[str], place: str) -> None:
        with self.started(command) as process:
            output = process.communicate(timeout=TIMEOUT)[0].decode("utf-8", "replace")
        assert process.returncode == 0, f"{place}: {command[-1]}\n{output}"
        assert "Traceback" not in output, f"{place}: {command[-1]}\n{output}"
        self.output += output

    def serve(self, command: str, place: str) -> None:
        """Starts a service on a free port, opens its page, and stops it."""
        with self.started(["bash", "-c", f"exec {command} --port 0"]) as process:
            try:
                line = process.stdout.readline().decode()
                match = re.search(r"http://\S+:(\d+) serves", line)
                assert match, f"{place}: {command}\n{line}"
                with urllib.request.urlopen(f"http://127.0.0.1:{match[1]}/", timeout=60) as page:
                    assert b"<html" in page.read()
                process.terminate()
                process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 0, f"{place}: {command}"

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


def shape(line: str) -> str:
    """A line of output without its numbers, durations and sentences."""
    if match := re.match(r"(source|translation|reference) ", line):
        return match[1]
    text = re.sub(r"\d[\d,]*(\.\d+)?([eE][+-]?\d+)?", "#", line.replace("(best)", ""))
    text = re.sub(r"#( h| min| s| ms)( #( min| s))?\b", "TIME", text)
    return " ".join(text.split())


def missing_lines(shown: str, output: str) -> list[str]:
    """The lines with known labels of the output that a page shows which have no line of the same
    shape in the output of the program."""
    real = {shape(line) for line in output.splitlines()}
    return [
        line
        for line in shown.splitlines()
        if LABELS.match(line.strip()) and shape(line) not in real and not line.endswith("...")
    ]


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


# ---- What the test finds ----


@needs_environment
def test_the_environment_of_a_clone_is_ready(tmp_path):
    make_clone(tmp_path)
    done = subprocess.run(
        [
            ".venv/bin/python",
            "-c",
            "import sys, transformer_mt as t; print(sys.prefix, t.__file__)",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [
        str(tmp_path / ".venv"),
        str(tmp_path / "transformer_mt" / "__init__.py"),
    ]
    config = yaml.safe_load((tmp_path / "configs" / "demo.yaml").read_text(encoding="utf-8"))
    assert config["training"]["max_steps"] == 40 and config["training"]["seed"] == 1
    assert len((tmp_path / "data/demo/test.en").read_text(encoding="utf-8").splitlines()) == 20


@pytest.mark.parametrize(
    ("page", "is_right"),
    [
        ("```bash\necho a > b\nls b\n```\n```text\nother\n```", True),
        ("```bash\nls b\n```", False),
        ("```bash\necho Traceback\n```", False),
        ("```bash\necho 'done in 3 s'\n```\n```text\ndone in 1 min 42 s\n```", True),
        ("```bash\necho 'ended in 3 s'\n```\n```text\ndone in 3 s\n```", False),
        ("```bash\necho 'done in 3 s'\n```\n```bash\necho\n```\n```text\ndone in 3 s\n```", False),
    ],
)
def test_what_does_not_work_is_found(page, is_right, tmp_path):
    newcomer = Newcomer(tmp_path)
    if is_right:
        newcomer.follow(parse(page))
    else:
        with pytest.raises(AssertionError):
            newcomer.follow(parse(page))


def test_recipes_are_edited_as_the_table_says(tmp_path):
    page = parse(
        "| key | default |\n| --- | --- |\n| `a` | none |\n\n"
        "| key | what | here |\n| --- | --- | --- |\n"
        "| `model_dir` | x | `runs/x` |\n| `data.dev` | y | `null` |\n"
    )
    assert asked_edits(page) == {"model_dir": "runs/x", "data.dev": None}
    (tmp_path / "configs").mkdir()
    shutil.copy(ROOT / "configs" / "template.yaml", tmp_path / "configs" / "a.yaml")
    (tmp_path / "my.yaml").write_text((tmp_path / "configs" / "a.yaml").read_text("utf-8"))
    Newcomer(tmp_path).edit(page, "cp configs/a.yaml my.yaml   ")
    values = yaml.safe_load((tmp_path / "my.yaml").read_text("utf-8"))
    assert values["model_dir"] == "runs/x" and values["training"]["max_steps"] == 40
    assert values["data"] == {"root": "corpus", "train": "train", "source_lang": "de",
                              "target_lang": "en", "dev": None, "test": None}  # fmt: skip


def test_shapes_of_lines():
    assert shape("estimated time  14 s of it (0.24 s per step)") == shape(
        "estimated time  12 min of it (45 ms per step)"
    )
    assert shape("step 400/1,000  epoch 6  loss 1.450  lr 3.46e-03  55 s left") == shape(
        "step 5/20  epoch 1  loss 9.1  lr 1.00e-04  1 min 5 s left"
    )
    assert shape("step 1,000  dev loss 1  (best)") == shape("step 7  dev loss 2.5")
    assert shape("dev loss 1") != shape("dev loss")
    assert shape("translation 1 a") == shape("translation b") != shape("reference 1 a")
