"""The Python programs that pages show work, with a model that was never trained."""

import ast
import contextlib
import io
import re
import subprocess
import sys

import pytest

from tests.docs.pages import find_page, pages
from tests.support import demo_pairs, make_config, make_model_directory, run_command
from transformer_mt import Translator


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    config = make_config(folder, decoding={"beam_size": 5})
    return make_model_directory(folder / "model", demo_pairs(300), config).path


def test_the_programs_of_the_python_page(model):
    names, printed = {}, ""
    for block in find_page("docs/python.md").blocks:
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(block.text.replace("runs/demo", str(model)), names)
            printed = output.getvalue()
        elif block.text.startswith("decoding."):  # translations depend on the model
            assert printed == block.text
    assert names["answer"](["A dog."]) == names["translator"].translate(["A dog."])


def test_the_programs_of_other_pages(model):
    count = 0
    for name, page in pages().items():
        for block in page.blocks_in("python"):
            text = re.sub(r'load\("runs/\w+"', f'load("{model}"', block.text)
            # A comparison of times is not run.
            if name == "docs/python.md" or text == block.text or "process_time" in text:
                continue
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(text, {})
            assert ast.literal_eval(output.getvalue()), name
            count += 1
    assert count


def test_the_program_with_an_export(model):
    """docs/deployment.md: CTranslate2 and SentencePiece alone."""
    pytest.importorskip("ctranslate2")
    blocks = find_page("docs/deployment.md").blocks_in("python")
    program = next(block.text for block in blocks if "import ctranslate2" in block.text)
    run_command("export", model, "--format", "ctranslate2")
    export = model / "export" / "ctranslate2"
    lines = [source for source, _ in demo_pairs(5)]
    # This model was never trained and does not end its outputs. So its beams depend on the greatest
    # length, which is another one in `translate`, but greedy search begins in the same way.
    program = program.replace("beam_size=5, patience=2", "beam_size=1")
    program = program.replace("runs/demo/export/ctranslate2", str(export))
    program = re.sub(r'\["[^"\]]*\?"\]', repr(lines).replace("\\", r"\\"), program)
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    translations = ast.literal_eval(done.stdout)
    expected = Translator.load(export, beam_size=1).translate(lines)
    assert [text[:10] for text in translations] == [text[:10] for text in expected]
    assert len(set(translations)) > 1
