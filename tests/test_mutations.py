"""The list of mutations is current: each can be made, and names tests that exist."""

from pathlib import Path

import pytest

from tests.mutations import ROOT, Mutation, read_mutations


@pytest.mark.parametrize("mutation", read_mutations(), ids=str)
def test_it_can_be_made(mutation: Mutation):
    text = Path(ROOT, "transformer_mt", mutation.file).read_text("utf-8")
    assert text.count(mutation.right) == 1
    assert mutation.right != mutation.wrong
    assert mutation.tests and all(Path(ROOT, "tests", name).exists() for name in mutation.tests)
