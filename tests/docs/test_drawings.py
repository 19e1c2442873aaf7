"""The drawings of docs/images agree with the code, and load nothing."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.support import ROOT
from tests.test_structure import imports

IMAGES = ROOT / "docs" / "images"
# Modules that the drawing shows in the box of another, and those that it leaves out.
SHOWN_IN = {"weights": "model_directory"}
LEFT_OUT = {"cli", "__main__"}


def box_of(module: str) -> str:
    name = module.split(".")[0]
    return SHOWN_IN.get(name, name)


def test_the_arrows_of_the_architecture_are_the_imports_of_the_package():
    real = {
        (box_of(module), box_of(other))
        for module, others in imports().items()
        for other in others
        if box_of(module) != box_of(other) and box_of(module) not in LEFT_OUT
    }
    svg = (IMAGES / "architecture.svg").read_text("utf-8")
    drawn = {tuple(pair.split()) for pair in re.findall(r'data-imports="([^"]*)"', svg)}
    assert drawn <= real
    reachable = set(drawn)
    while more := {(a, d) for a, b in reachable for c, d in drawn if b == c} - reachable:
        reachable |= more
    assert real <= reachable


@pytest.mark.parametrize("path", sorted(IMAGES.glob("*.svg")), ids=lambda path: path.name)
def test_a_drawing_is_small_and_loads_nothing(path):
    """Sites show it as an image, in which no script runs and nothing is fetched."""
    text = path.read_text("utf-8")
    names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
    assert not {"script", "image", "foreignObject"} & names
    assert not re.search(r"@import|url\((?!#)|href=", text)
    assert len(text) < 60_000
