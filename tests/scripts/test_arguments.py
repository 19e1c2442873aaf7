"""What the shell scripts hand to the program."""

import pytest

DEMO = "configs/demo.yaml"


@pytest.mark.parametrize(
    ("script", "arguments", "code"),
    [
        ("setup.sh", ["--what"], 2),
        *((name, [], 2) for name in ("translate.sh", "evaluate.sh", "reproduce.sh")),
        *((f"{name}.sh", ["--help"], 0) for name in ("train", "translate", "evaluate", "test")),
        *((f"{name}.sh", ["-h"], 0) for name in ("reproduce", "setup")),
    ],
)
def test_the_usage_is_shown_and_nothing_is_installed(project, script, arguments, code):
    run = project.run(script, *arguments)
    assert run.returncode == code
    assert (run.stderr_text if code else run.stdout_text).startswith(f"Usage: scripts/{script}")
    assert not (project.root / ".venv").exists()


@pytest.mark.parametrize(
    ("script", "arguments", "at_root", "expected"),
    [
        ("train.sh", [], True, ["train", DEMO]),
        ("train.sh", ["a.b=c d"], True, ["train", DEMO, "a.b=c d"]),
        ("train.sh", ["my config.yaml", "a=1"], False, ["train", "my config.yaml", "a=1"]),
        ("train.sh", ["--device", "cpu"], True, ["train", DEMO, "--device", "cpu"]),
        ("train.sh", ["--device", "gpu:1", "my.yaml"], False,
         ["train", "--device", "gpu:1", "my.yaml"]),
        ("translate.sh", ["--beam", "5", "m", "i n", "-"], False,
         ["translate", "--beam", "5", "m", "i n", "-"]),
        ("evaluate.sh", ["m", "--x", "y"], False, ["evaluate", "m", "--x", "y"]),
        ("test.sh", ["-k", "a or b"], True, ["-k", "a or b"]),
        ("test.sh", ["--all"], True, ["--all", "--numprocesses", "auto", "--maxprocesses", "4",
         "--dist", "loadfile", "--no-loadscope-reorder"]),
    ],
)  # fmt: skip
def test_arguments_reach_the_program(project, script, arguments, at_root, expected):
    project.python("python3")
    run = project.run(script, *arguments)
    assert run.returncode == 0, run.stderr_text
    place = project.root if at_root else project.elsewhere
    module = "pytest" if script == "test.sh" else "transformer_mt"
    lines = [f"in {place}:", "<-m>", f"<{module}>", *(f"<{word}>" for word in expected)]
    assert run.stdout_text.splitlines() == lines
    installed = any("requirements-dev.txt" in call for call in project.pip_calls())
    assert installed == (script == "test.sh")
