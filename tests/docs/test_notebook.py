"""docs/first_steps.ipynb: what it shows is of one run, and its cells work."""

import re
import shutil

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support import ROOT

PATH = ROOT / "docs" / "first_steps.ipynb"
# Values of the training that the test replaces, to take seconds.
SHORTER = {"max_steps": 20, "warmup_steps": 5, "log_every": 5, "validate_every": 10}


@pytest.fixture
def notebook():
    return nbformat.read(PATH, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def problems(notebook) -> list:
    """What is wrong with the outputs that a notebook holds."""
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    bad = [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    return bad + re.findall(r"(?<![\w./])/(?:home|root|tmp|work|Users)/\w+", str(outputs))


def test_the_outputs_of_the_notebook(notebook):
    assert problems(notebook) == []
    assert notebook.metadata.kernelspec.name == "python3"


@pytest.mark.slow
def test_the_cells_of_the_notebook_work(notebook, tmp_path, monkeypatch):
    for name in ("configs", "data/demo"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "docs").mkdir()
    for cell in code_cells(notebook):
        for key, value in SHORTER.items():
            cell.source, count = re.subn(rf"(training\.{key})=\d+", rf"\1={value}", cell.source)
            assert count == ("-m transformer_mt train" in cell.source)
        cell.outputs, cell.execution_count = [], None
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path / "docs")}},
        coalesce_streams=True,
    ).execute()
    assert problems(notebook) == []
    assert (tmp_path / "runs" / "first_steps" / "attention.html").is_file()
