"""The program of docs/deployment.md that needs CTranslate2 and SentencePiece alone."""

import ast
import subprocess
import sys

import pytest

from tests.docs.pages import find_page
from tests.support import demo_pairs, make_config, make_model_directory, run_command
from transformer_mt import Translator

FOLDER, SENTENCE = "runs/demo/export/ctranslate2", "Where is the station?"


def test_it_translates_with_an_export(tmp_path):
    pytest.importorskip("ctranslate2")
    program = next(
        block.text
        for block in find_page("docs/deployment.md").blocks_in("python")
        if "import ctranslate2" in block.text
    )
    assert len([line for line in program.splitlines() if line and "import" not in line]) <= 5
    assert program.count(FOLDER) == 2 and program.count(SENTENCE) == 1
    pairs = demo_pairs(300)
    model = tmp_path / "model"
    make_model_directory(model, pairs, make_config(tmp_path, subword={"vocab_size": 300}))
    run_command("export", model, "--format", "ctranslate2")
    export = model / "export" / "ctranslate2"
    lines = [source for source, _ in pairs[:5]]
    # This model was never trained and does not end its outputs. So its beams depend on the greatest
    # length, which is another one in `translate`, but greedy search begins in the same way.
    assert "beam_size=5, patience=2" in program
    program = program.replace("beam_size=5, patience=2", "beam_size=1")
    program = program.replace(FOLDER, str(export)).replace(f'["{SENTENCE}"]', repr(lines))
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    expected = Translator.load(export, beam_size=1).translate(lines)
    translations = ast.literal_eval(done.stdout)
    assert [text[:10] for text in translations] == [text[:10] for text in expected]
    assert len(set(translations)) == len(lines)
