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


def commands(model: Path, folder: Path):
    """Every way to open a model directory."""
    files = folder / "source", folder / "target"
    source, both = ("--input", files[0]), ("--source", files[0], "--target", files[1])
    yield "translate", model, "--threads", 1, *source
    yield "score", model, "--threads", 1, *both
    yield "align", model, "--threads", 1, *both
    yield "attention", model, "--text", "A dog.", "--output", folder / "page.html"
    yield "info", model
    yield "export", model, "--format", "ctranslate2", "--output", folder / "new_export"
    yield "average", model, "--last", 2
    yield "export", model, "--format", "pdparams", "--output", folder / "new.pdparams"
    for made in ("ctranslate2", "paddle_inference"):
        yield "translate", model / "export" / made, "--threads", 1, *source
    yield "translate", model, "--threads", 1, "--ensemble", f"{model}:step_5", *source


def test_no_file_of_a_model_directory_runs_code(driver, model, tmp_path, is_large):
    whole, given, marker = model, tmp_path / "given" / "model", tmp_path / "marker"
    shutil.copytree(model.parent, tmp_path / "given")
    for target in files_of(given):
        within = target.relative_to(given).parts
        if target.name.startswith("SHA256") or ("step_5" in within and not is_large):
            continue
        for protocol in (4, 0) if is_large else (4,):
            target.write_bytes(pickle.dumps(Payload(marker), protocol))
            make_right(target)
            for arguments in commands(given, tmp_path / "given"):
                reads_export = "export" in arguments[1].parts
                if is_large or reads_export == (within[0] == "export"):
                    answer = driver.run(*arguments)
                    assert not marker.exists(), f"{arguments} has run what {target} holds"
                    answer.require_clear()
            shutil.rmtree(given)
            shutil.copytree(whole, given)


@pytest.mark.slow
def test_no_file_of_a_run_and_its_cache_runs_code(driver, trained, tmp_path, is_large):
    """Going on with a run, fine-tuning from it, and beginning anew with its cache."""
    root, marker = trained.parent, tmp_path / "marker"
    attacked = files_of if is_large else read_by_training
    for target in [*attacked(root / "model"), *files_of(root / "cache")]:
        if target.name == "SHA256SUMS" and not is_large:
            continue
        work = tmp_path / "work"
        for place in ("model", "cache"):
            shutil.copytree(root / place, work / place)
        moved = work / target.relative_to(root)
        moved.write_bytes(pickle.dumps(Payload(marker), 4))
        make_right(moved)
        runs = [("model",)]
        if "cache" in target.parts or is_large:
            runs.append(("other",))
        if "model" in target.parts and (is_large or target.name == "model.safetensors"):
            runs.append(("tuned", f"training.init_from={work / 'model'}"))
        for name, *changes in runs:
            changes += [f"data.cache={work / 'cache'}", "training.max_steps=7"]
            answer = driver.run("train", trained, f"model_dir={work / name}", *changes)
            assert not marker.exists(), f"{name} has run what {target} holds"
            answer.require_clear()
        shutil.rmtree(work)


@pytest.mark.slow
def test_no_link_is_written_through(driver, model, recipe, tmp_path, is_large):
    """A link in the place of whatever a command may write: what it leads to stays as it is."""
    victim, folder, given = tmp_path / "victim", tmp_path / "victims", tmp_path / "given"
    victim.write_text("mine")
    folder.mkdir()
    (folder / "mine").write_text("mine")
    folders = ["checkpoints", "checkpoints/step_5", "checkpoints/step_7", "checkpoints/.step_7.tmp"]
    folders += ["checkpoints/average_last_2", "export", "export/ctranslate2", "held_out"]
    places = [".lock", "best", "config.yaml", "format_version", "metrics.jsonl", "SHA256SUMS"]
    places += ["test.hypothesis", "subword.model", "held_out/SHA256SUMS", "export/step_10.pdparams"]
    places += [*folders, ".workers"]
    for place in places if is_large else places[::4]:
        shutil.copytree(model, given)
        path = given / place
        path.parent.mkdir(exist_ok=True)
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(folder if place in folders else victim)
        for verb, *arguments in (
            ("train", recipe, f"model_dir={given}"),
            ("train", recipe, f"model_dir={given}", "--restart"),
            ("average", given, "--last", 2),
            ("export", given, "--format", "ctranslate2"),
            ("export", given, "--format", "pdparams"),
        ):
            driver.run(verb, *arguments).require_clear()
            assert victim.read_text() == "mine", f"{place}: {verb}"
            assert [entry.name for entry in folder.iterdir()] == ["mine"], f"{place}: {verb}"
        for made in (given, tmp_path / "given.before-restart"):
            shutil.rmtree(made, ignore_errors=True)
