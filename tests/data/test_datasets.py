"""The registry of datasets: light to import, and complete."""

import json
import os
import pickle
import subprocess
import sys

import paddlenlp.utils.env
import pytest

from tests.docs.pages import example
from tests.support import write_lines
from transformer_mt.data import datasets
from transformer_mt.data.datasets import DATA_HOME, DATASETS
from transformer_mt.utils.errors import UserError

HEAVY = {"paddle", "paddlenlp", "numpy", "sentencepiece", "pydantic", "transformer_mt.config"}


def test_importing_it_is_light():
    program = "import sys, transformer_mt.data.datasets; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "transformer_mt.data.datasets" in loaded and not loaded & HEAVY


@pytest.mark.parametrize("name", DATASETS)
def test_each_says_what_the_config_asks(name):
    dataset = DATASETS[name]
    # What can be downloaded has a licence.
    assert dataset.needs_root == (not dataset.origin) == (not dataset.licence)
    # A worker process gets the reader by its name.
    assert pickle.loads(pickle.dumps(dataset.read)) is dataset.read


def test_downloads_go_where_paddlenlp_has_its_own():
    assert str(DATA_HOME) == paddlenlp.utils.env.DATA_HOME


def test_paddlenlp_needs_no_writable_home_for_files_of_ones_own(tmp_path):
    (tmp_path / "file").write_text("")  # no folder can be made in a file, by root either
    home = str(tmp_path / "file" / "home")
    code = (
        "import os; from transformer_mt.data import datasets;"
        "datasets.import_paddlenlp(); print(os.environ.get('PPNLP_HOME'));"
        "datasets.multi30k_file('dev', 'en', None)"
    )
    environment = os.environ | {"PPNLP_HOME": home, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == f"{home}\n", done.stderr
    assert "can't be written: Not a directory. Set the environment variable PPNLP" in done.stderr
    assert not list(tmp_path.glob("tmp*"))


def test_the_dataset_of_the_architecture_page_reads_its_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "json", json, raising=False)  # the example's module imports it
    dataset = example("A dataset", datasets)["JsonLines"]()
    pairs = [{"source": "a", "target": "b"}, {"source": "中", "target": ""}]
    path = write_lines(tmp_path / "train.jsonl", map(json.dumps, pairs))
    (found,) = dataset.find(str(tmp_path), "train", "train", ("en", "de")).paths
    assert found == path and list(dataset.read([str(path)])) == pairs
    write_lines(path, ["{}"])
    with pytest.raises(UserError, match="line 1: not a pair"):
        list(dataset.read([str(path)]))
