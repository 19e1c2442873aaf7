"""What setup.sh makes: which Python it takes, what a second run does, and what it leaves alone."""

import re
import shutil
import signal
import subprocess
import time

import pytest

READY = ".venv is ready (Python 3.11, cpu).\n"
BASE = [
    "install --quiet --retries 1 --require-hashes -r .venv/tmp/build.txt",
    "install --require-hashes --no-build-isolation -r requirements.txt",
    "install --no-build-isolation --no-deps -e .",
]
DEV = ["install --require-hashes --no-build-isolation -r requirements-dev.txt"]
CHECK = ["check"]


@pytest.fixture
def ready(project):
    """A project whose environment was made before."""
    project.python("python3")
    assert project.run("setup.sh").stderr_text.endswith(READY)
    return project


# ---- Which Python ----


def test_the_first_python_that_will_do_is_taken(project):
    project.program("python3.12", "#!/bin/sh\nexit 127\n")
    project.python("python3.11", "lacks ensurepip")
    wanted = project.python("python3.10", "ok 3.10")
    project.python("python3")
    run = project.run("setup.sh")
    assert run.returncode == 0
    assert f"because there is none: {wanted} (3.10), for the cpu" in run.stderr_text


@pytest.mark.parametrize(
    ("answer", "setting", "words"),
    [
        (None, {}, "apt-get install python3"),
        ("lacks libgomp.so.1", {}, "python3 lacks libgomp.so.1\n"),
        ("ok 3.11", {"PYTHON": "/nowhere/python"}, "at PYTHON=/nowhere/python"),
        ("ok 3.11", {"TRANSFORMER_MT_DEVICE": "tpu"}, "must be cpu or gpu"),
        ("ok 3.11", {"TRANSFORMER_MT_CUDA": "cu127"}, "must be one of cu130 cu129 cu126 cu118"),
    ],
)
def test_nothing_is_made(project, answer, setting, words):
    if answer:
        project.python("python3", answer)
    run = project.run("setup.sh", **setting)
    assert run.returncode == (2 if "must be" in words else 1) and run.stdout_text == ""
    assert words in run.stderr_text and not (project.root / ".venv").exists()


# ---- Once, twice, interrupted, broken ----


def test_setup_installs_once(ready):
    assert ready.pip_calls() == BASE + CHECK
    ready.run("setup.sh", "--dev")
    for arguments in ([], ["--dev"]):
        run = ready.run("setup.sh", *arguments)
        assert run.stderr_text == READY and run.stdout_text == ""
    assert ready.pip_calls() == BASE + CHECK + DEV + CHECK
    add_requirement(ready)
    assert "Updating .venv, because the requirements" in ready.run("setup.sh").stderr_text
    assert ready.pip_calls()[len(BASE + CHECK + DEV + CHECK) :] == BASE + DEV + CHECK


def add_requirement(project):
    with open(project.root / "requirements.txt", "a") as file:
        file.write("something==1\n")


def move(project):
    old, project.root = project.root, project.root.with_name("new place")
    old.rename(project.root)


def write(name, text):
    return lambda project: (project.root / ".venv" / name).write_text(text)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (move, "it was made in "),
        (lambda p: write(".setup_stamp", f"unfinished - - none {p.root}\n")(p), "not complete"),
        (lambda p: (p.root / ".venv/bin/python").unlink(), "now has no Python that runs"),
        (write("bin/has", "3.12"), "it was made with Python 3.11 and now has 3.12"),
        (write("bin/has", "3.11 without tqdm"), "now has 3.11 without tqdm"),
    ],
)
def test_what_is_broken_is_made_again(ready, harm, words):
    (ready.root / ".venv/.old").mkdir()
    harm(ready)
    run = ready.run("setup.sh")
    assert run.returncode == 0 and words in run.stderr_text
    assert not (ready.root / ".venv/.old").exists()
    assert ready.pip_calls() == (BASE + CHECK) * 2
    assert ready.run("setup.sh").stderr_text == READY


def test_another_python_or_device_must_be_asked_for(ready):
    ready.program("nvidia-smi", "#!/bin/sh\n")
    other = ready.python("my python")
    for setting in ({}, {"PYTHON": str(other)}, {"TRANSFORMER_MT_CUDA": "cu118"}):
        assert ready.run("setup.sh", **setting).stderr_text == READY
    run = ready.run("setup.sh", TRANSFORMER_MT_DEVICE="gpu")
    assert "because it was made for the cpu" in run.stderr_text
    ready.python("my python", "ok 3.12")
    run = ready.run("setup.sh", PYTHON=str(other))
    assert f"it was made with Python 3.11: {other} (3.12)" in run.stderr_text


RETRYING = "WARNING: Retrying (Retry(total={}, connect=None)) after connection broken by 'NewConn"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ConnectionError: no route", ["ConnectionError: no route", ".venv/setup.log", "(free: "]),
        (
            "".join(f"{RETRYING.format(number)}\n" for number in (1, 0)),
            ["could not reach the package index", "PIP_FIND_LINKS"],
        ),
    ],
)
def test_pip_failure_is_explained_and_mended_by_the_next_run(project, log, words):
    project.python("python3")
    (project.home / "pip-fails").write_text(log)
    run = project.run("train.sh")
    assert run.returncode == 1 and run.stdout_text == ""
    assert all(word in run.stderr_text for word in [*words, "PIP_INDEX_URL"])
    assert len(project.pip_calls()) == 1
    (project.home / "pip-fails").unlink()
    run = project.run("setup.sh")
    assert run.returncode == 0 and "not complete" in run.stderr_text


# ---- What it did not make ----


def make_folder(path, name="x", text="mine\n"):
    path.mkdir()
    (path / name).write_text(text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_folder, "did not make it"),
        (lambda venv: venv.write_text("a file in its place"), "did not make it"),
        (lambda venv: venv.symlink_to(venv.parent / "nowhere"), "did not make it"),
        (lambda venv: make_folder(venv, ".setup_stamp", ""), ".setup_stamp, which"),
        (lambda venv: make_folder(venv, ".setup_stamp", "tpu 3.11 1-2 none /x"), "is damaged"),
    ],
)
def test_what_it_did_not_make_is_left_alone(project, make, words):
    project.python("python3")
    venv = project.root / ".venv"
    make(venv)
    before = snapshot(project.root)
    run = project.run("train.sh")
    assert run.returncode == 1 and run.stdout_text == ""
    assert words in run.stderr_text and "Nothing was changed" in run.stderr_text
    assert snapshot(project.root) == before
    # What the message says helps, also with the space in this path.
    command = re.search(r"mv .*\.venv .*\.venv\.old", run.stderr_text)[0]
    subprocess.run(["bash", "-c", command], check=True)
    assert project.run("setup.sh").returncode == 0


def snapshot(folder):
    return {
        path: path.read_bytes() if path.is_file() else path.is_symlink() and path.readlink()
        for path in folder.rglob("*")
    }


# ---- However it is called ----


@pytest.mark.parametrize("shell", ["sh", "bash --posix"])
def test_other_shells_start_bash(project, shell):
    project.python("python3")
    run = project.run("translate.sh", "my model", shell=shell)
    assert run.returncode == 0 and "<my model>" in run.stdout_text


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_stop_the_installation_at_once(project, number, status):
    project.python("python3")
    (project.home / "pip-waits").touch()
    process = project.start("train.sh")
    wait_for(project.pip_calls)
    process.send_signal(number)
    assert process.wait(timeout=30) == status  # pip would wait for a minute
    process.communicate()
    (project.home / "pip-waits").unlink()
    assert "because it is not complete" in project.run("setup.sh").stderr_text


@pytest.mark.skipif(not shutil.which("flock"), reason="needs flock")
def test_two_runs_at_once_take_turns(project):
    project.python("python3")
    waits = project.home / "pip-waits"
    waits.touch()
    first = project.start("setup.sh")
    wait_for(project.pip_calls)
    second = project.start("setup.sh")
    waits.unlink()
    assert first.communicate(timeout=60)[1].endswith(READY)
    assert "waiting for it" in second.communicate(timeout=60)[1]
    assert first.returncode == second.returncode == 0
    assert project.pip_calls() == BASE + CHECK


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
