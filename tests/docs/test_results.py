"""docs/results: every score is recomputed from the translations, and the tables say the same."""

import json

import pytest

from published import record
from published.row import rows
from tests.conftest import SHARED_DATA
from tests.support import ROOT
from transformer_mt.config import file as config_file
from transformer_mt.data.datasets import DATASETS
from transformer_mt.data.normalization import lc_norm_tok

RECORDED = {name: row for name, row in rows().items() if row.is_recorded}
# The references of each row's test set. Those of other people's corpora are not in this project.
REFERENCES = {
    "demo": ROOT / "data/demo/test.de",
    "multi30k_en_de": SHARED_DATA / "multi30k/test2016.de",
    "multi30k_en_de_published": SHARED_DATA / "multi30k/test2016.de",
    "multi30k_en_de_best": SHARED_DATA / "multi30k/test2016.de",
    "multi30k_en_de_ensemble": SHARED_DATA / "multi30k/test2016.de",
    "multi30k_de_en": SHARED_DATA / "multi30k/test2016.en",
    "tatoeba_zh_en": SHARED_DATA / "tatoeba_zh-en/test.en",
    "tatoeba_en_zh": SHARED_DATA / "tatoeba_zh-en/test.zh",
    "tatoeba_de_en": SHARED_DATA / "tatoeba_de-en/test.en",
}


@pytest.mark.parametrize("name", RECORDED)
def test_scores_are_those_of_the_translations(name):
    row = RECORDED[name]
    found = record.recorded(row)
    config = config_file.load(row.folder / record.CONFIG)
    if not REFERENCES[name].exists():
        pytest.skip(f"{REFERENCES[name]} is not here")
    references = REFERENCES[name].read_text("utf-8").split("\n")[:-1]
    if DATASETS[config.data.dataset].is_lc_norm_tok:
        references = list(map(lc_norm_tok(config.data.target_lang), references))
    assert {int(seed) for seed in found["seeds"]} <= set(row.seeds)
    for seed, kept in found["seeds"].items():
        text = record.hypothesis_file(row, int(seed)).read_text("utf-8")
        scores = record.scores_in(row, config, text.split("\n")[:-1], references)
        assert json.loads(json.dumps(scores)) == kept["scores"]


@pytest.mark.parametrize("name", RECORDED)
def test_the_table_says_the_same(name):
    page = (ROOT / "docs/results.md").read_text("utf-8")
    assert record.table_line(RECORDED[name]) in page.splitlines()


def test_every_row_is_in_the_page():
    page = (ROOT / "docs/results.md").read_text("utf-8")
    for name in rows():
        assert f"| `{name}` |" in page
