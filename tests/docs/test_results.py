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

# The references of each row's test set. Those of other people's corpora are not in this project.
MULTI30K_DE = SHARED_DATA / "multi30k/test2016.de"
REFERENCES = {
    "demo": ROOT / "data/demo/test.de",
    **{f"multi30k_en_de{name}": MULTI30K_DE for name in ("", "_published", "_best", "_ensemble")},
    "multi30k_de_en": SHARED_DATA / "multi30k/test2016.en",
    "tatoeba_zh_en": SHARED_DATA / "tatoeba_zh-en/test.en",
    "tatoeba_en_zh": SHARED_DATA / "tatoeba_zh-en/test.zh",
    "tatoeba_de_en": SHARED_DATA / "tatoeba_de-en/test.en",
}


@pytest.mark.parametrize("name", rows())
def test_scores_are_those_of_the_translations_and_of_the_page(name):
    page, row = (ROOT / "docs/results.md").read_text("utf-8"), rows()[name]
    assert f"| `{name}` |" in page
    if not row.is_recorded:
        return
    assert record.table_line(row) in page.splitlines()
    if not REFERENCES[name].exists():
        pytest.skip(f"{REFERENCES[name]} is not here")
    config = config_file.load(row.folder / record.CONFIG)
    references = REFERENCES[name].read_text("utf-8").split("\n")[:-1]
    if DATASETS[config.data.dataset].is_lc_norm_tok:
        references = list(map(lc_norm_tok(config.data.target_lang), references))
    for seed, kept in record.recorded(row)["seeds"].items():
        text = record.hypothesis_file(row, int(seed)).read_text("utf-8")
        scores = record.scores_in(row, config, text.split("\n")[:-1], references)
        assert int(seed) in row.seeds and json.loads(json.dumps(scores)) == kept["scores"]
