"""A file that one person gives to another can't run code when it is opened: a pickle that leaves a
marker stands in the place of every file, with right checksums, and no command runs it."""

import os
import pickle
import shutil
from pathlib import Path

import pytest

from tests.attack.support import files_of, make_right, read_by_training


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def test_the_payload_itself_works(tmp_path):
    pickle.loads(pickle.dumps(Payload(tmp_path / "marker")))
    assert (tmp_path / "marker").is_dir()


def commands(model: Path, folder: Path):
    """Every way to open a model directory."""
    files = folder / "source", folder / "target"
    both = "--source", files[0], "--target", files[1]
    exports = model / "export"
    yield "translate", model, "--threads", 1, "--input", files[0]
    yield "score", model, "--threads", 1, *both
    yield "align", model, "--threads", 1, *both
    yield "attention", model, "--text", "A dog.", "--output", folder / "page.html"
    yield "info", model
    yield "export", model, "--format", "ctranslate2", "--output", folder / "new_export"
    yield "average", model, "--last", 2
    yield "export", model, "--format", "pdparams", "--output", folder / "new.pdparams"
    for made in ("ctranslate2", "paddle_inference"):
        yield "translate", exports / made, "--threads", 1, "--input", files[0]
    yield "translate", model, "--threads", 1, "--ensemble", f"{model}:step_5", "--input", files[0]


def test_no_file_of_a_model_directory_runs_code(driver, model, tmp_path, is_large):
    shutil.copytree(model.parent, tmp_path / "given")
    given = tmp_path / "given" / "model"
    whole = tmp_path / "whole"
    shutil.copytree(given, whole)
    marker = tmp_path / "marker"
    payloads = [pickle.dumps(Payload(marker), protocol) for protocol in (4, 0)]
    targets = [path for path in files_of(given) if not path.name.startswith("SHA256")]
    if not is_large:
        targets = [path for path in targets if "step_5" not in path.parts]
    for target in targets:
        for payload in payloads[: 1 + is_large]:
            target.write_bytes(payload)
            make_right(target)
            for arguments in commands(given, tmp_path / "given"):
                if not is_large and not concerns(arguments, target.relative_to(given)):
                    continue
                answer = driver.run(*arguments)
                assert not marker.exists(), f"{arguments} has run what {target} holds"
                answer.require_clear()
            shutil.rmtree(given)
            shutil.copytree(whole, given)


def concerns(arguments, target: Path) -> bool:
    """Whether a command may read a file at all, for the small attack."""
    reads_export = "export" in Path(arguments[1]).parts
    return reads_export == (target.parts[0] == "export")


@pytest.mark.slow
def test_no_file_of_a_run_and_its_cache_runs_code(driver, recipe, tmp_path, is_large):
    """Going on with a run, fine-tuning from it, and beginning anew with its cache."""
    root = recipe.parent
    if not (root / "model").exists():
        assert driver.run("train", recipe).code == 0
    marker = tmp_path / "marker"
    payload = pickle.dumps(Payload(marker), 4)
    places = [root / "model", root / "cache"]
    attacked = files_of if is_large else read_by_training
    targets = [*attacked(root / "model"), *files_of(root / "cache")]
    if not is_large:
        targets = [path for path in targets if path.name != "SHA256SUMS"]
    for number, target in enumerate(targets):
        work = tmp_path / str(number)
        for place in places:
            shutil.copytree(place, work / place.name)
        moved = work / target.relative_to(root)
        moved.write_bytes(payload)
        make_right(moved)
        common = f"data.cache={work / 'cache'}", "training.max_steps=7"
        runs = [("train", recipe, f"model_dir={work / 'model'}", *common)]
        if "cache" in target.parts or is_large:
            runs.append(("train", recipe, f"model_dir={work / 'other'}", *common))
        if "model" in target.parts and (is_large or target.name == "model.safetensors"):
            init = f"training.init_from={work / 'model'}"
            runs.append(("train", recipe, f"model_dir={work / 'tuned'}", init, *common))
        for arguments in runs:
            answer = driver.run(*arguments)
            assert not marker.exists(), f"{arguments} has run what {target} holds"
            answer.require_clear()
        shutil.rmtree(work)


@pytest.mark.slow
def test_no_link_is_written_through(driver, model, recipe, tmp_path, is_large):
    """A link in the place of whatever a command may write: what it leads to stays as it is."""
    victim, folder = tmp_path / "victim", tmp_path / "victims"
    victim.write_text("mine")
    folder.mkdir()
    (folder / "mine").write_text("mine")
    places = [
        *(".lock", "best", "config.yaml", "format_version", "metrics.jsonl", "test.hypothesis"),
        *("SHA256SUMS", "subword.model", "checkpoints", "checkpoints/step_5", "export", ".workers"),
        *("checkpoints/average_last_2", "export/ctranslate2", "held_out", "held_out/SHA256SUMS"),
        *("checkpoints/step_7", "checkpoints/.step_7.tmp", "export/step_10.pdparams"),
    ]
    folders = ("checkpoints", "export", "held_out", ".workers", "ctranslate2")
    for place in places if is_large else places[::3]:
        given = tmp_path / "given"
        shutil.copytree(model, given)
        path = given / place
        path.parent.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        is_folder = path.name in folders or "step_" in path.name or "average" in path.name
        path.symlink_to(folder if is_folder and path.suffix != ".pdparams" else victim)
        commands = [
            ("train", recipe, f"model_dir={given}"),
            ("train", recipe, f"model_dir={given}", "--restart"),
            ("average", given, "--last", 2),
            ("export", given, "--format", "ctranslate2"),
            ("export", given, "--format", "pdparams"),
        ]
        for arguments in commands:
            driver.run(*arguments).require_clear()
            assert victim.read_text() == "mine", f"{place}: {arguments}"
            assert [entry.name for entry in folder.iterdir()] == ["mine"], f"{place}: {arguments}"
        shutil.rmtree(given)
        shutil.rmtree(tmp_path / "given.before-restart", ignore_errors=True)
