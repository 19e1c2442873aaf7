"""Files that are given by position, or by the option of the same name."""

import io
import sys

import pytest

from tests.support import demo_pairs, make_config, make_model_directory, run_command, write_lines
from transformer_mt.utils.errors import UsageError

PAIRS = demo_pairs(40)
SOURCES, TARGETS = map(list, zip(*PAIRS[:5], strict=True))
QUICK = {"threads": 1, "beam_size": 1, "max_length_extra": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("positions")
    make_model_directory(folder / "model", PAIRS, make_config(folder))
    write_lines(folder / "source", SOURCES)
    write_lines(folder / "reference", TARGETS)
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    """A folder with the files, in which commands run; what they write is gone afterwards."""
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def translate(*arguments, **flags):
    run_command("translate", "model", *arguments, **QUICK, **flags)


def test_translate_by_position_and_by_option(here):
    translate("source", "out1")
    translate(input="source", output="out2")
    translate("source", output="out3")
    first = (here / "out1").read_bytes()
    assert first.count(b"\n") == 5
    for name in ("out2", "out3"):
        assert (here / name).read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "flags"), [(["source", "-"], {}), (["source"], {"output": "-"})]
)
def test_a_dash_is_the_standard_output(here, monkeypatch, arguments, flags):
    translate("source", "file")
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    translate(*arguments, **flags)
    assert written.getvalue() == (here / "file").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "flags"), [(["-", "piped"], {}), ([], {"input": "-", "output": "piped"})]
)
def test_a_dash_is_the_standard_input(here, monkeypatch, arguments, flags):
    translate("source", "file")
    with open("source") as file:
        monkeypatch.setattr(sys, "stdin", file)
        translate(*arguments, **flags)
    assert (here / "piped").read_bytes() == (here / "file").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "flags", "words"),
    [
        (["source"], {"input": "source"}, "source: INPUT was also given as --input; give it once"),
        (["-", "out"], {"output": "other"}, "out: OUTPUT was also given as --output"),
        (["nothing"], {}, "nothing: there is no such file"),
    ],
)
def test_translate_refuses(here, arguments, flags, words):
    before = sorted(here.iterdir())
    with pytest.raises(UsageError, match=words):
        translate(*arguments, **flags)
    assert sorted(here.iterdir()) == before


def evaluated(capsys, *arguments, **flags) -> str:
    run_command("evaluate", *arguments, metric_only=True, **QUICK, **flags)
    return capsys.readouterr().out


def test_evaluate_by_position_and_by_option(here, capsys):
    expected = evaluated(capsys, "model", source="source", reference="reference")
    assert expected.count("\n") == 1
    assert evaluated(capsys, "model", "source", "reference") == expected
    several = evaluated(capsys, "model", "model:last", "source", "reference")
    by_flags = evaluated(capsys, "model", "model:last", source="source", reference="reference")
    assert several == by_flags and several.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "flags", "words"),
    [
        (["model"], {}, "give MODEL_DIR SOURCE REFERENCE, or MODEL_DIR with --source and --refer"),
        (["model", "source"], {}, "give MODEL_DIR SOURCE REFERENCE"),
        (["model", "source", "reference"], {"reference": "reference"}, "source is a file, not a"),
        (["model", "source", "reference"], {"source": "source"}, "--reference"),
        (["model", "source", "reference"], {"source": "source", "reference": "reference"},
         "source is a file, not a model. Give SOURCE and REFERENCE either both behind"),
        (["model", "source", "reference"], {"hypothesis": "reference"}, "give --reference"),
        (["model", "nothing", "reference"], {}, "--source: nothing: there is no such file"),
    ],
)  # fmt: skip
def test_evaluate_refuses(here, arguments, flags, words):
    with pytest.raises(UsageError, match=words):
        run_command("evaluate", *arguments, **QUICK, **flags)
