"""What the pages claim of the code, of versions and of messages, against the code."""

import ast
import functools
import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.pages import ROOT, Page, commands, find_page, pages, parse, simple_commands
from tests.docs.test_languages import figures
from tests.lines_of_code import lines_of_package
from tests.scripts.fake_project import requirements

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "requirements-ctranslate2.txt")
# What packages are called in text.
NAMES = {"paddle": "paddlepaddle", "joeynmt": None}


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def number(text: str) -> int:
    return int(text.replace(",", ""))


# ---- Counts ----


def lines_of_the_model() -> int:
    return lines_of_package(ROOT / "transformer_mt" / "model")


def kills() -> int:
    """How many trainings `tests/attack/test_kills.py` kills with --attack."""
    text = (ROOT / "tests" / "attack" / "test_kills.py").read_text(encoding="utf-8")
    body = text.partition("def test_training(")[2].partition("\ndef ")[0]
    return int(re.search(r"range\((\d+) if is_large", body)[1])


def demo_pairs() -> int:
    text = (ROOT / "data" / "demo" / "train.en").read_text(encoding="utf-8")
    return len(text.splitlines())


# The claims that are counted, and how. A bound is claimed with "fewer than", and must be near.
CLAIMS = [
    (r"[Tt]he model is (fewer than) \**([\d,]+)\** lines of code", lines_of_the_model),
    (r"[Tt]ests (kill) \**(\d+)\** trainings", kills),
    (r"(corpus of this demo), ([\d,]+) pairs", demo_pairs),
]
# Every sentence of this kind must be one of them.
COUNTED = re.compile(r"[\d,]+\W* lines of code|kill\w* \W*[\d,]+\W* trainings")


def problems_of_counts(page: Page, claims=CLAIMS) -> list[str]:
    text = re.sub(r"\s+", " ", page.source)
    found, counted = [], 0
    for pattern, count in claims:
        for match in re.finditer(pattern, text):
            counted += bool(COUNTED.search(match[0]))
            claimed, real = number(match[2]), count()
            if match[1] == "fewer than":
                is_right = 0.8 * claimed < real < claimed
            else:
                is_right = real == claimed
            if not is_right:
                found.append(f"{page.path}: {match[0]!r}: it is {real:,}")
    if counted != len(COUNTED.findall(text)):
        found.append(f"{page.path}: {COUNTED.findall(text)}: no test counts all of them")
    return found


@pytest.mark.parametrize("name", pages())
def test_counts_are_right(name):
    problems = problems_of_counts(pages()[name])
    assert not problems, "\n".join(problems)


def test_the_claims_of_the_first_page_are_counted():
    text = re.sub(r"\s+", " ", find_page("README.md").source)
    missing = [pattern for pattern, count in CLAIMS if not re.search(pattern, text)]
    assert missing == []


def test_figures_of_the_first_page_are_explained():
    """They stand in a page of docs/ too, where the command that made them is."""
    explained = set()
    for name, page in pages().items():
        if name.startswith("docs/"):
            explained |= figures(page)
    own = {one for one in figures(find_page("README.md")) if "." in one}
    versions = {"3.10", "3.11", "3.12", "2.0"}
    assert own - versions - explained == set()


# ---- Versions ----


@functools.cache
def locked() -> dict[str, str]:
    """The locked version of each package."""
    found = {}
    for name in REQUIREMENTS:
        for requirement in requirements(name):
            (only,) = requirement.specifier
            found[canonicalize_name(requirement.name)] = only.version
    return found


def problems_of_versions(page: Page) -> list[str]:
    """The versions of locked packages in a page that are not the locked ones."""
    found = []
    for match in re.finditer(r"\b([A-Za-z][\w-]*)(?:==| )v?(\d+(?:\.\d+)+)\b", page.source):
        name = canonicalize_name(match[1])
        version = locked().get(NAMES.get(name, name) or "")
        if version and match[2] != version and not version.startswith(f"{match[2]}."):
            found.append(f"{page.path}: {match[0]}: {version} is locked")
        if name == "python" and match[2] not in project_pythons():
            found.append(f"{page.path}: {match[0]}")
    for match in re.finditer(r"\|version:([\d.]+)", page.source):
        if match[1] != locked()["sacrebleu"]:
            found.append(f"{page.path}: {match[0]}: {locked()['sacrebleu']} is locked")
    return found


def project_pythons() -> list[str]:
    low, high = map(
        int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project()["requires-python"]).groups()
    )
    return [f"3.{minor}" for minor in range(low, high)]


@pytest.mark.parametrize("name", [name for name in pages() if name != "CHANGELOG.md"])
def test_versions_are_the_locked_ones(name):
    problems = problems_of_versions(pages()[name])
    assert not problems, "\n".join(problems)


def test_the_first_pages_name_the_pythons():
    for name in ("README.md", "README.zh.md"):
        found = set(re.findall(r"\b3\.1\d\b", find_page(name).source))
        assert found == set(project_pythons()), name


def problems_of_packages(page: Page) -> list[str]:
    """The packages that a page installs with pip and that are not locked."""
    found = []
    for block in page.blocks_in("bash", "sh"):
        for command in commands(block):
            for one in simple_commands(command.text):
                words = [word for word in one.words if not word.endswith(("/pip", "/python"))]
                if "install" not in words or "pip" not in " ".join(one.words):
                    continue
                words = words[words.index("install") + 1 :]
                names = [
                    word
                    for before, word in zip(["", *words], words, strict=False)
                    if before not in ("-r", "-c", "-e") and re.match(r"[A-Za-z]", word)
                ]
                for name in names:
                    if canonicalize_name(Requirement(name).name) not in locked():
                        found.append(f"{page.place(command)}: {name}")
    return found


@pytest.mark.parametrize("name", pages())
def test_installed_packages_are_locked(name):
    problems = problems_of_packages(pages()[name])
    assert not problems, "\n".join(problems)


# ---- Messages ----


@functools.cache
def messages() -> list[str]:
    """All texts in the program: those of its Python, whose variable parts are left out, and the
    shell scripts."""
    texts = []
    for path in (ROOT / "transformer_mt").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", None) for part in node.values]
                texts.append("\0".join(part if isinstance(part, str) else "" for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    for path in (ROOT / "scripts").glob("*.sh"):
        text = re.sub(r'"\s*\\\n\s*"', " ", path.read_text(encoding="utf-8"))
        texts += re.findall(r'"((?:[^"\\]|\\.)*)"', re.sub(r"\$\{[^}]*\}|\$\w+", "\0", text))
    return texts


def words_of(text: str) -> list[str]:
    """The words of a message in lower case. Parts that vary from one message to another, such as
    numbers and paths, are one `|` each."""
    text = re.sub(r"\0|\"[^\"]*\"|<[^>]*>|\S*/\S*|\w+(?:[._]\w+)+|\w*\d\w*|\.\.\.|…", " | ", text)
    return re.findall(r"[^\W\d_][^\W_]*(?:['-]\w+)*|\|", text.lower())


@functools.cache
def words_of_the_program() -> str:
    return f" {' | '.join(' '.join(words_of(text)) for text in messages())} "


def share_of_the_program(message: str) -> float:
    """The share of the letters of a message that stand in runs of two words or more (or are all of
    the message) that the program has too."""
    words = words_of(message)
    covered, first = 0, 0
    while first < len(words):
        last = first
        while (
            last < len(words) and f" {' '.join(words[first : last + 1])} " in words_of_the_program()
        ):
            last += 1
        if last - first >= min(2, len(words)):
            covered += sum(len(word) for word in words[first:last] if word != "|")
        first = max(last, first + 1)
    return covered / max(1, sum(len(word) for word in words if word != "|"))


def problems_of_messages(page: Page) -> list[str]:
    """The messages in backticks, in headings and bold text, that the program does not have."""
    return [
        f"{page.place(part)}: {quoted}"
        for part in [*page.headings, *page.bold]
        for quoted in re.findall(r"`([^`]+)`", part.text)
        # Shorter ones are names of files, keys and flags.
        if len(words_of(quoted)) >= 3 and share_of_the_program(quoted) < 0.7
    ]


def test_messages_of_the_faq_exist():
    page = find_page("docs/faq.md")
    problems = problems_of_messages(page)
    assert not problems, "\n".join(problems)
    quoted = [one for one in [*page.headings, *page.bold] if "`" in one.text]
    assert len(quoted) >= 5


# ---- What the checks find ----


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("The model is fewer than **50** lines of code.", True),
        ("The model is fewer than 41 lines of code.", False),
        ("The model is fewer than 80 lines of code.", False),
        ("Another thing is 7 lines of code.", False),
        ("Tests kill 41\n trainings", False),
    ],
)
def test_wrong_counts_are_found(text, is_right):
    claims = [(pattern, lambda: 42) for pattern, _ in CLAIMS]
    assert bool(problems_of_counts(parse(text), claims)) != is_right


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (f"PaddleNLP {locked()['paddlenlp']} and numpy=={locked()['numpy']}", True),
        ("PaddleNLP 2.8 and JoeyNMT 2.3 and Python 3.11", True),
        ("PaddleNLP 2.7.1", False),
        ("`numpy==1.0.0`", False),
        ("Python 3.9", False),
        ("nrefs:1|version:2.5.0", False),
    ],
)
def test_wrong_versions_are_found(text, is_right):
    assert bool(problems_of_versions(parse(text))) != is_right


def test_unlocked_packages_are_found():
    page = parse(
        "```bash\npython3 -m pip install -r requirements.txt -c x.txt numpy 'tqdm==4'\n"
        "a/bin/pip install frobnicate\necho install b\n```"
    )
    assert problems_of_packages(page) == ["page.md:3: frobnicate"]


@pytest.mark.parametrize(
    ("message", "is_right"),
    [
        ("my.yaml: there is no such config file", True),
        ("there is no such configuration file", False),
        ("data.root: runs/x: there is no such config file", True),
        ("runs/demo", True),
        ("unknown key; did you mean training.learning_rate?", True),
        ("unknown entry; do you want training.learning_rate?", False),
        ("No usable Python was found", True),
    ],
)
def test_wrong_messages_are_found(message, is_right):
    assert bool(problems_of_messages(parse(f"## `{message}`"))) != is_right
    assert bool(problems_of_messages(parse(f"**The error `{message}`**"))) != is_right
