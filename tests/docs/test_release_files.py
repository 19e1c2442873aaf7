"""CITATION.cff and CHANGELOG.md agree with the package."""

import re

import yaml

from tests.support import ROOT
from transformer_mt import __version__


def test_one_version_everywhere():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'(?m)^version = "(.*)"$', project)[1] == __version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"(?m)^## (.*)$", changelog)
    assert versions[:2] == ["Unreleased", __version__]


def test_the_citation_has_what_its_schema_requires():
    """https://github.com/citation-file-format/citation-file-format, version 1.2.0."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert citation["message"] and citation["title"]
    assert [list(author) for author in citation["authors"]] == [["name"]]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'license = "{citation["license"]}"' in project
