"""The command `compare`: what it reads, what it prints and writes, and what it rejects."""

import json

import pytest

from tests.support import demo_pairs, run_command, run_python, write_lines
from transformer_mt.utils.errors import UsageError, UserError

SOURCES, REFERENCES = (list(side) for side in zip(*demo_pairs(60), strict=True))


@pytest.fixture
def files(tmp_path):
    """Two systems, of which the second is much better, their source and their reference."""
    worse = [" ".join(line.split(" ")[::2]) for line in REFERENCES]
    better = [line.replace(" ", "  ", 1).replace("der", "die") for line in REFERENCES]
    texts = {"source": SOURCES, "reference": REFERENCES, "worse": worse, "better": better}
    return {name: write_lines(tmp_path / name, lines) for name, lines in texts.items()}


def compare(files, *systems, **flags):
    """With BLEU alone, which is quicker, unless the flags say otherwise."""
    flags = {"reference": files["reference"], "metrics": "bleu", **flags}
    run_command("compare", *systems, **flags)


def test_files_are_compared(files, tmp_path, capsys):
    paths = {"json": tmp_path / "out.json", "html": tmp_path / "out.html"}
    compare(files, files["worse"], files["better"], source=files["source"], examples=2, **paths)
    printed = capsys.readouterr()
    assert f"A  {files['worse']}  (baseline)\nB  {files['better']}\n60 lines" in printed.out
    assert "\x1b" not in printed.out and "warning" not in printed.err
    kept = json.loads(paths["json"].read_text("utf-8"))
    comparison = kept["comparisons"]["B"]
    assert comparison["verdict"] in " ".join(printed.out.split())
    assert comparison["outcome"] == "better" and len(comparison["better"]) == 2
    bleu = kept["metrics"]["bleu"]["systems"]
    difference = bleu["B"]["difference"]
    assert bleu["A"]["difference"] is None
    assert difference["value"] == bleu["B"]["score"] - bleu["A"]["score"]
    example = comparison["better"][0]
    assert example["references"] == [REFERENCES[example["line"] - 1]]
    assert example["source"] == SOURCES[example["line"] - 1]
    assert paths["html"].read_text("utf-8").startswith("<!doctype html>")


def test_references_metrics_and_scoring_are_options(files, tmp_path, capsys):
    upper = write_lines(tmp_path / "upper", [line.upper() for line in REFERENCES])
    out = tmp_path / "out.json"
    run_command(
        "compare", files["worse"], files["better"], "--reference", files["reference"],
        *("--reference", upper, "--metrics", "ter", "bleu", "--lowercase"),
        tokenize="char", training_text=files["reference"], json=out,
    )  # fmt: skip
    kept = json.loads(out.read_text("utf-8"))
    assert list(kept["metrics"]) == ["ter", "bleu"] and kept["references"] == 2
    signature = kept["metrics"]["bleu"]["signatures"]["bootstrap"]
    assert all(part in signature for part in ("nrefs:2|", "case:lc|", "tok:char|"))
    assert any(kind.endswith("the training text") for kind in kept["comparisons"]["B"]["groups"])
    # A lower TER is better.
    assert kept["metrics"]["ter"]["systems"]["B"]["difference"]["value"] < 0
    assert kept["comparisons"]["B"]["outcome"] == "better"


def test_a_model_is_translated_as_evaluate_does(model, tmp_path, capsys):
    output = tmp_path / "translated"
    few = {name: write_lines(tmp_path / f"few_{name}", lines[:6])
           for name, lines in (("source", SOURCES), ("reference", REFERENCES))}  # fmt: skip
    flags = {**few, "metrics": "bleu", "threads": 1, "beam_size": 1, "max_length_extra": 0}
    run_command("evaluate", f"{model}:step_5", output=output, **flags)
    run_command("compare", f"{model}:step_5", output, model, **flags)
    printed = capsys.readouterr()
    systems = f"A  {model}:step_5  (baseline)\nB  {output}\nC  {model}\n"
    assert systems in printed.out
    assert "B and A are identical: all 6 translations are the same" in printed.out
    # sacreBLEU does not log its progress, although Paddle has set up logging.
    assert "resampling" not in printed.err


def test_suspicious_input_is_warned_of(files, tmp_path, capsys):
    marked = write_lines(tmp_path / "marked", [line.replace("e", "e@@ ") for line in REFERENCES])
    again = tmp_path / ".." / tmp_path.name / "worse"
    out = tmp_path / "out.json"
    compare(files, files["worse"], marked, again, json=out)
    printed = capsys.readouterr()
    assert f"warning: {again} is given twice" in printed.err and "C  " not in printed.out
    assert "warning: B: 60 of 60 translations contain '@@ '" in printed.err
    warnings = json.loads(out.read_text("utf-8"))["warnings"]
    assert any(warning.startswith("B: ") for warning in warnings)


@pytest.mark.parametrize(
    ("systems", "flags", "error", "message"),
    [
        (["worse", "absent"], {}, UsageError, "absent: there is no such file or model directory"),
        (["worse", "better"], {"reference": "absent"}, UsageError, "absent: there is no such file"),
        (["worse", "shorter"], {}, UserError, "shorter has 59"),
        (["worse", "better"], {"source": "shorter"}, UserError, "shorter has 59"),
        (["worse", "empty"], {}, UserError, "empty is empty"),
        (["worse", "folder"], {}, UsageError, "folder is a model. Give --source"),
        (["worse", "better"], {"json": "better"}, UsageError, "are the same file"),
        (["worse", "better"], {"examples": -1}, UsageError, "--examples"),
        (["worse", "better"], {"ensemble": "x"}, UsageError, "--ensemble"),
    ],
)
def test_what_cannot_be_compared(files, tmp_path, systems, flags, error, message):
    write_lines(tmp_path / "shorter", REFERENCES[:59])
    write_lines(tmp_path / "empty", [])
    (tmp_path / "folder").mkdir()
    is_file = {"source", "reference", "json", "html"}
    flags = {k: tmp_path / v if k in is_file else v for k, v in flags.items()}
    with pytest.raises(error) as raised:
        compare(files, *(tmp_path / name for name in systems), **flags)
    assert message in str(raised.value)
    assert type(raised.value) is error
    assert files["better"].read_text("utf-8").startswith(REFERENCES[0][:3])


def test_files_are_compared_without_paddle(files):
    """So that the command starts at once."""
    code = (
        "import sys; from transformer_mt.cli import main; "
        "code = main(sys.argv[1:]); print('paddle' in sys.modules); sys.exit(code)"
    )
    arguments = ["compare", files["worse"], files["better"], "--reference", files["reference"]]
    done = run_python("-c", code, *arguments, is_fresh=True)
    assert done.returncode == 0 and done.stdout.endswith("\nFalse\n") and done.stderr == ""
