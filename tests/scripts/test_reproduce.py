"""scripts/reproduce.py: from the commands of a row to its scores, and their comparison."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import sacrebleu
import yaml

import reproduce
from published import record, row, steps
from tests.forked import ForkedProcess
from tests.support import ROOT, write_lines
from transformer_mt.utils.errors import UsageError, UserError

pytestmark = pytest.mark.slow

TRAIN = (
    "train configs/demo.yaml training.max_steps=2 training.validate_every=1 training.save_every=1 "
    "model.num_layers=1 model.d_model=16 model.d_ff=16 model.num_heads=2 training.devices=1 "
    "training.average_last=null training.seed={seed} 'model_dir={runs}/seed {seed}'"
)
ROW = {
    "title": "The demo corpus",
    "budget": "seconds",
    "corpus": "the demo corpus",
    "downloads": True,
    "seeds": [1, 2],
    "steps": [TRAIN],
    "model": "{runs}/seed {seed}",
    "protocols": ["sacrebleu", "lc.norm.tok"],
}
FORKING = SimpleNamespace(Popen=ForkedProcess, TimeoutExpired=subprocess.TimeoutExpired)


@pytest.fixture(scope="module", autouse=True)
def results(tmp_path_factory):
    """A folder of results with one row, and a folder of runs, in which it was recorded."""
    folder = tmp_path_factory.mktemp("reproduce")
    add_row(folder / "results", "small", ROW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row, "RESULTS", folder / "results")
        patch.setattr(steps, "subprocess", FORKING)
        for seeds in ([2], [1]):  # recorded one by one, as on two computers
            assert reproduce.reproduce(row.find("small"), places(folder), seeds, True) == 0
        yield folder


def add_row(folder, name, content):
    (folder / name).mkdir(parents=True)
    (folder / name / "row.yaml").write_text(yaml.safe_dump(content))


def places(folder):
    return row.Places(folder / "the runs", None)


def test_what_is_recorded(results):
    folder = results / "results" / "small"
    names = ["config.yaml", "dev.tsv", "row.yaml", "scores.json"]
    names += ["seed_1.hypothesis", "seed_2.hypothesis"]
    assert sorted(path.name for path in folder.iterdir()) == names
    found = json.loads((folder / "scores.json").read_text())
    references = (ROOT / "data/demo/test.de").read_text("utf-8").splitlines()
    for seed in ("1", "2"):
        hypotheses = (folder / f"seed_{seed}.hypothesis").read_text("utf-8").splitlines()
        scores = found["seeds"][seed]["scores"]
        assert scores["sacrebleu"]["bleu"] == sacrebleu.corpus_bleu(hypotheses, [references]).score
        assert set(scores) == {"sacrebleu", "lc.norm.tok"}
        lower, upper = scores["sacrebleu"]["intervals"]["chrf"]
        assert lower < upper
        assert found["seeds"][seed]["seconds"] > 0 and 0 < found["seeds"][seed]["cpu_hours"] < 1
    assert found["seeds"]["1"]["sha256"] != found["seeds"]["2"]["sha256"]
    files = {f"{split}.{lang}" for split in ("train", "dev", "test") for lang in ("en", "de")}
    assert set(found["data"]) == files
    curve = [line.split("\t") for line in (folder / "dev.tsv").read_text().splitlines()]
    assert curve[0] == ["seed", "step", "seconds", "loss", "bleu", "chrf"]
    assert [line[:2] for line in curve[1:]] == [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]
    text = (folder / "config.yaml").read_text()
    assert str(results) not in text and "max_steps: 2" in text


def test_the_second_time_nothing_runs_and_all_is_equal(results, capsys):
    assert reproduce.reproduce(row.find("small"), places(results), [1, 2], False) == 0
    printed, messages = capsys.readouterr()
    assert messages.count("done before") == 2 and "warning" not in messages
    found = record.recorded(row.find("small"))
    values = [found["seeds"][seed]["scores"]["sacrebleu"]["chrf"] for seed in ("1", "2")]
    (line,) = [line for line in printed.splitlines() if line.startswith("sacrebleu    chrf")]
    now, then = line.split("   recorded ")
    assert now.split()[2:] == then.split()
    assert float(now.split()[2]) == pytest.approx(sum(values) / 2, abs=0.005)
    assert reproduce.list_rows() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("small\n    The demo corpus\n") and "sacrebleu    BLEU " in printed


def test_scores_that_are_not_the_recorded_ones(results, capsys, monkeypatch):
    then = record.recorded(row.find("small"))
    for seed in then["seeds"].values():
        scores = seed["scores"]["sacrebleu"]
        scores["chrf"] += 30
        scores["intervals"]["chrf"] = [end + 30 for end in scores["intervals"]["chrf"]]
    then["data"]["train.en"] = "another"
    monkeypatch.setattr(record, "recorded", lambda row: then)
    assert reproduce.reproduce(row.find("small"), places(results), [1, 2], False) == 1
    printed, messages = capsys.readouterr()
    assert printed.count("OUTSIDE of its interval") == 1 and "train.en differ" in messages


def test_wrong_arguments(tmp_path):
    small = row.find("small")
    assert reproduce.seeds_of(small, None) == [1, 2]
    with pytest.raises(UsageError, match=r"The rows are .*small"):
        row.find("smal")
    with pytest.raises(UsageError, match="--seed 3: the seeds of small are 1, 2"):
        reproduce.seeds_of(small, 3)
    with pytest.raises(UsageError, match="Give --data FOLDER"):
        reproduce.require_data(dataclasses.replace(small, downloads=False), None)
    with pytest.raises(UsageError, match="there is no such folder"):
        reproduce.require_data(small, tmp_path / "none")


def test_a_row_of_an_ensemble(results):
    """Its scores are those of one command, and its record names the weights of all models."""
    first, second = "{runs:small}/seed 1", "{runs:small}/seed 2"
    test = ROOT / "data/demo/test.en"
    content = {
        **ROW,
        "seeds": [1],
        "needs": {"small": [1, 2]},
        "steps": [f"translate '{first}' '{test}' '{{runs}}/out' --ensemble '{second}'"],
        "model": first,
        "hypothesis": "{runs}/out",
    }
    add_row(results / "results", "pair", content)
    pair = row.find("pair")
    assert reproduce.reproduce(pair, places(results), [1], True) == 0
    found = record.recorded(pair)["seeds"]["1"]
    recorded = record.recorded(row.find("small"))["seeds"]
    (other,) = found["ensemble"]
    assert other["model"] == "seed 2"
    assert [found["sha256"], other["sha256"]] == [recorded[seed]["sha256"] for seed in ("1", "2")]
    output = places(results).of("pair") / "out"
    assert record.hypothesis_file(pair, 1).read_bytes() == output.read_bytes()
    # The time of all trainings counts.
    assert found["seconds"] > recorded["1"]["seconds"] + recorded["2"]["seconds"] - 1


def test_a_step_that_failed_or_whose_line_was_cut_is_run_again(tmp_path, capsys):
    text, reference = write_lines(tmp_path / "text", ["a"]), tmp_path / "reference"
    command = ["evaluate", "--hypothesis", str(text), "--reference", str(reference)]
    with pytest.raises(UserError, match="ended with exit code 2: evaluate --hypothesis"):
        steps.run_all([command], tmp_path)
    write_lines(reference, ["a"])
    steps.run_all([command], tmp_path)
    assert [run.exit_code for run in steps.runs_of(tmp_path)] == [2, 0]
    log = tmp_path / steps.LOG
    log.write_text(log.read_text()[:-20])
    for _ in range(2):
        steps.run_all([command], tmp_path)
    assert log.read_text().count('"exit_code": 0') == 2
    assert f"{log}, line 2: damaged" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_a_step(tmp_path, number):
    """Whoever is told to stop, the step does not outlive it. It saves its work if it can."""
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'scripts')!r}]\n"
        "import pathlib, reproduce\nfrom published import row\n"
        f"row.RESULTS = pathlib.Path({str(tmp_path / 'results')!r})\n"
        f"sys.argv = ['reproduce', 'long', '--runs', {str(tmp_path / 'runs')!r}]\n"
        "sys.exit(reproduce.main())"
    )
    step = TRAIN.replace("max_steps=2", "max_steps=100000").replace("every=1 ", "every=10000 ")
    add_row(tmp_path / "results", "long", {**ROW, "seeds": [1], "steps": [step]})
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    log = tmp_path / "runs" / "long" / "seed 1" / "metrics.jsonl"
    end = time.monotonic() + 120
    while not (log.exists() and '"train"' in log.read_text()):
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.1)
    process.send_signal(number)
    # The step and its processes have the pipe too, so this waits for all of them.
    messages = process.communicate(timeout=60)[1]
    if number == signal.SIGKILL:
        assert process.returncode == -number
        return
    assert process.returncode == 128 + number, messages
    assert "the same command goes on from here" in messages
    (run,) = steps.runs_of(tmp_path / "runs" / "long")
    assert run.exit_code == 128 + number and run.cpu_seconds > 0
    assert list((log.parent / "checkpoints").glob("step_*"))
