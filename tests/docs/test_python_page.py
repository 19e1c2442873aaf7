"""The programs of docs/python.md, in their order, and the short ones of other pages, with a model
that was never trained."""

import ast
import contextlib
import io
import re

from tests.docs.pages import find_page, pages
from tests.support import demo_pairs, make_config, make_model_directory

FOLDER = "runs/demo"


def test_the_programs_of_the_page_work(tmp_path):
    config = make_config(tmp_path, decoding={"beam_size": 5})
    model = make_model_directory(tmp_path / "model", demo_pairs(300), config).path
    names, printed, compared = {}, "", 0
    for block in find_page("docs/python.md").blocks:
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(block.text.replace(FOLDER, str(model)), names)
            printed = output.getvalue()
        elif block.language == "text":
            assert printed, block.line
            # Translations depend on the model; messages do not.
            if block.text.startswith("decoding."):
                assert printed == block.text
                compared += 1
    assert compared == 1
    assert names["answer"](["A dog."]) == names["translator"].translate(["A dog."])


def test_programs_that_other_pages_show_work(tmp_path):
    config = make_config(tmp_path, decoding={"beam_size": 5})
    model = make_model_directory(tmp_path / "model", demo_pairs(300), config).path
    found = 0
    for name, page in pages().items():
        for block in page.blocks_in("python"):
            text = re.sub(r'load\("runs/\w+"', f'load("{model}"', block.text)
            # A comparison of times is not run.
            if name == "docs/python.md" or text == block.text or "process_time" in text:
                continue
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(text, {})
            assert len(ast.literal_eval(output.getvalue())) == 2, page.place(block)
            found += 1
    assert found >= 4
