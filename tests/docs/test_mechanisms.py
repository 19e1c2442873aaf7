"""What docs/mechanisms.md says of keys, recipes and combinations."""

import re
from operator import attrgetter

import pytest

from tests.docs.code_names import DOCS, in_backticks
from tests.docs.pages import find_page
from transformer_mt.config import file as config_file
from transformer_mt.config.schema import SECTIONS
from transformer_mt.utils.errors import UsageError

# The rows of tables of the page, without the heads. Between them are tables of measured effects.
TABLES = find_page("docs/mechanisms.md").tables
MECHANISMS, OPTIONS = TABLES[0][1:], TABLES[-1][1:]
COMBINATIONS = TABLES[-2][1:]
# How each mechanism and its neighbours are turned on, in the words of the table of combinations.
TURNED_ON = {
    "scheduled sampling": ["scheduled_sampling.decay=linear"],
    "copying": ["model.copying=true"],
    "guided attention": ["guided_attention.by=diagonal"],
    "non-autoregressive": ["model.non_autoregressive=length"],
    "BPE-dropout, unigram sampling": ["subword.sampling=0.1"],
}


def test_each_mechanism_has_a_recipe_that_turns_it_on():
    recipes = []
    for _, turned_on_by, recipe, _ in MECHANISMS:
        for path in re.findall(r"\[recipe\]\(([^)]+)\)", recipe):
            recipes.append(path)
            (key,) = in_backticks(turned_on_by)
            assert attrgetter(key)(config_file.load(DOCS / path)), (path, key)
    assert sorted(recipes) == [
        "../configs/copying.yaml",
        "../configs/guided_attention.yaml",
        "../configs/non_autoregressive.yaml",
        "../configs/scheduled_sampling.yaml",
    ]


COLUMNS = [name for name in TURNED_ON if "," not in name]


@pytest.mark.parametrize(
    ("row", "column", "cell"),
    [
        (row, column, cell)
        for row, *cells in COMBINATIONS
        for column, cell in zip(COLUMNS, cells, strict=True)
        if row in TURNED_ON and cell
    ],
)
def test_the_config_allows_what_the_table_says(row, column, cell):
    assert cell in ("yes", "no")
    overrides = TURNED_ON[row] + TURNED_ON[column]
    try:
        config_file.load(DOCS.parent / "configs" / "demo.yaml", overrides)
    except UsageError:
        assert cell == "no"
    else:
        assert cell == "yes"


def test_the_table_of_combinations_has_every_mechanism():
    rows = [row for row, *_ in COMBINATIONS]
    assert [row for row in rows if row in TURNED_ON] == [
        *COLUMNS[:3],
        "BPE-dropout, unigram sampling",
    ]


@pytest.mark.parametrize(("option", "keys"), [pytest.param(*row[:2], id=row[0]) for row in OPTIONS])
def test_keys_of_options_exist(option, keys):
    names = [name.split(":")[0] for name in in_backticks(keys)]
    assert names
    known = {f"{name}.{key}" for name, one in SECTIONS.items() for key in one.model_fields}
    for name in names:
        short = {key.split(".")[1] for key in known} | {"average"}
        assert name in known | short or name.startswith("--"), (option, name)
