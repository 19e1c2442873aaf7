"""The names in docs/course-notes.md are those of the code."""

import re

import pytest

from tests.docs.code_names import PACKAGE, defined, defined_anywhere, in_backticks, placed
from tests.docs.pages import find_page
from tests.support import ROOT
from transformer_mt.config.schema import SECTIONS

# The two tables of the page, without their heads.
NAMES, EQUATIONS = (table[1:] for table in find_page("docs/course-notes.md").tables)
# What tutorials call a part, and must be found under.
TUTORIALS = [
    "get_attn_pad_mask",
    "TransformerEmbedding",
    "ResidualConnection",
    "Predictor",
    "PoswiseFeedForwardNet",
    "Self_Attention",
    "generate_mask",
]
KEYS = {key for section in SECTIONS.values() for key in section.model_fields}
# What is in backticks and no name: values of keys.
VALUES = {"norm: post", "pre", "noam"}


@pytest.mark.parametrize(
    ("theirs", "ours"), [pytest.param(*row, id=row[0]) for row in NAMES + EQUATIONS]
)
def test_the_names_on_the_right_are_in_the_code(theirs, ours):
    for path in re.findall(r"[\w/]+\.py\b", ours):
        assert (PACKAGE / path).is_file(), path
    names = set(in_backticks(ours)) - VALUES
    assert names
    for name in names:
        if "/" in name:
            assert (ROOT / name).is_file(), name
        else:
            assert name in defined_anywhere() | KEYS, name
    for name, path in placed(ours):
        assert name in defined(PACKAGE / path), (name, path)


def test_names_are_in_backticks():
    assert all(in_backticks(theirs) for theirs, _ in NAMES)
    assert len(placed("".join(ours for _, ours in NAMES))) > 10


@pytest.mark.parametrize("name", TUTORIALS)
def test_names_of_tutorials_are_found(name):
    assert sum(name in in_backticks(theirs) for theirs, _ in NAMES) == 1
