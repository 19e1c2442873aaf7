"""What the README says of files, names and keys, against the files, names and keys."""

import ast
import functools
import re
from operator import attrgetter

import pytest

from tests.support import ROOT
from transformer_mt.config import file as config_file

README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "transformer_mt"
NAMES = "From course notes to this code"
# Of that table: what tutorials call a part, and must be found under.
TUTORIALS = [
    "get_attn_pad_mask",
    "TransformerEmbedding",
    "ResidualConnection",
    "Predictor",
    "PoswiseFeedForwardNet",
    "Self_Attention",
    "generate_mask",
]


def table(heading):
    """The cells of the rows of the first table under a heading, without its head."""
    section = re.split(r"(?m)^#+ ", README.split(f"# {heading}\n")[1])[0]
    first = re.search(r"(?m)(^\|.*\n)+", section)[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in first.splitlines()]
    assert set("".join(rows[1])) <= set("- ") and len(rows) > 3
    return rows[2:]


def in_backticks(cell):
    return re.findall(r"`([^`]+)`", cell)


@functools.cache
def defined(path):
    """What a module defines: classes and functions, and methods as Class.method."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (one for one in node.body if isinstance(one, ast.FunctionDef))
            names |= {f"{node.name}.{one.name}" for one in inner}
    return names


def test_links_lead_to_files():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) > 10
    for link in links:
        path, _, section = link.partition("#")
        assert (ROOT / path).exists(), link
        headings = re.findall(r"(?m)^#+ (.*)$", README)
        anchors = {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings}
        assert not section or section in anchors, link


# ---- From course notes to this code ----


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [pytest.param(*row, id=row[0]) for row in table(NAMES)],
)
def test_what_tutorials_call_otherwise_is_here(theirs, ours):
    assert in_backticks(theirs)
    everywhere = set().union(*(defined(path) for path in PACKAGE.rglob("*.py")))
    for path in re.findall(r"\S+\.py\b", ours):
        assert (PACKAGE / path).is_file(), path
    names = [name for name in in_backticks(ours) if name not in ("norm: post", "pre")]
    assert names
    for name in names:
        if "/" in name:
            assert (ROOT / name).is_file(), name
        else:
            assert name in everywhere, name
    for name, path in re.findall(r"`([\w.]+)` in (\S+\.py)\b", ours):
        assert name in defined(PACKAGE / path), (name, path)


@pytest.mark.parametrize("name", TUTORIALS)
def test_names_of_tutorials_are_found(name):
    rows = table(NAMES)
    assert sum(name in in_backticks(theirs) for theirs, _ in rows) == 1


# ---- Beyond the plain model ----


def test_each_option_has_a_recipe_that_turns_it_on():
    recipes = []
    for _, turned_on_by, _ in table("Beyond the plain model"):
        for path in re.findall(r"\[recipe\]\(([^)]+)\)", turned_on_by):
            recipes.append(path)
            key = in_backticks(turned_on_by)[0].split(":")[0]
            assert attrgetter(key)(config_file.load(ROOT / path)), (path, key)
    assert sorted(recipes) == [
        "configs/copying.yaml",
        "configs/guided_attention.yaml",
        "configs/non_autoregressive.yaml",
        "configs/scheduled_sampling.yaml",
    ]
