"""What the shell scripts hand to the program."""

import pytest


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("setup.sh", ["--what"]),
        ("translate.sh", []),
        ("evaluate.sh", []),
        ("reproduce.sh", []),
    ],
)
def test_wrong_arguments(project, script, args):
    run = project.run(script, *args)
    assert run.returncode == 2
    assert run.stdout_text == ""
    assert run.stderr_text.startswith("Usage: scripts/" + script)


@pytest.mark.parametrize(
    ("script", "args", "at_root", "expected"),
    [
        ("train.sh", [], True, ["train", "configs/demo.yaml"]),
        ("train.sh", ["a.b=c d"], True, ["train", "configs/demo.yaml", "a.b=c d"]),
        ("train.sh", ["--resume"], True, ["train", "configs/demo.yaml", "--resume"]),
        ("train.sh", ["my config.yaml", "a=1"], False, ["train", "my config.yaml", "a=1"]),
        ("train.sh", ["--device", "cpu", "--check"], True,
         ["train", "configs/demo.yaml", "--device", "cpu", "--check"]),
        ("train.sh", ["--device", "gpu:1", "a=1", "my.yaml"], False,
         ["train", "--device", "gpu:1", "a=1", "my.yaml"]),
        ("translate.sh", ["m"], False, ["translate", "m"]),
        ("translate.sh", ["--beam", "5", "m", "i n", "o"], False,
         ["translate", "--beam", "5", "m", "i n", "o"]),
        ("translate.sh", ["m", "-", "o"], False, ["translate", "m", "-", "o"]),
        ("evaluate.sh", ["m", "n", "s", "r", "--x", "y"], False,
         ["evaluate", "m", "n", "s", "r", "--x", "y"]),
    ],
)  # fmt: skip
def test_arguments_reach_the_program(project, script, args, at_root, expected):
    project.python("python3")
    run = project.run(script, *args)
    assert run.returncode == 0, run.stderr_text
    place = project.root if at_root else project.elsewhere
    lines = [f"in {place}:", "<-m>", "<transformer_mt>", *(f"<{word}>" for word in expected)]
    assert run.stdout_text.splitlines() == lines


def test_test_script_runs_pytest_at_the_root(project):
    project.python("python3")
    run = project.run("test.sh", "-k", "a or b")
    assert run.stdout_text.splitlines() == [
        f"in {project.root}:", "<-m>", "<pytest>", "<-k>", "<a or b>"
    ]  # fmt: skip
    assert any("requirements-dev.txt" in call for call in project.pip_calls())


@pytest.mark.parametrize("level", [[], ["--all"], ["--attack"]])
def test_levels_of_the_suite_run_side_by_side(project, level):
    project.python("python3")
    words = project.run("test.sh", *level).stdout_text.split()
    assert words[words.index("<pytest>") + 1 :][: len(level)] == [f"<{word}>" for word in level]
    assert "<--numprocesses>" in words


@pytest.mark.parametrize(
    "script",
    ["train.sh", "translate.sh", "evaluate.sh", "reproduce.sh", "setup.sh", "test.sh"],
)
def test_help_installs_nothing(project, script):
    run = project.run(script, "--help")
    assert run.returncode == 0 and f"Usage: scripts/{script}" in run.stdout_text
    assert not (project.root / ".venv").exists()
