"""What setup.sh makes: which Python it takes, for which device, and what a second run does."""

import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests.scripts.fake_project import STAMP, Project
from tests.support import ROOT

READY = ".venv is ready (Python 3.11, cpu).\n"
BASE = [
    "install --quiet --retries 1 --require-hashes -r .venv/tmp/build.txt",
    "install --require-hashes --no-build-isolation -r requirements.txt",
    "install --no-build-isolation --no-deps -e .",
]
DEV = ["install --require-hashes --no-build-isolation -r requirements-dev.txt"]
CHECK = ["check"]


# ---- Which Python ----


def test_the_first_python_that_will_do_is_taken(project):
    project.program("python3.12", "#!/bin/sh\nexit 127\n")
    project.python("python3.11", "lacks ensurepip")
    wanted = project.python("python3.10", "ok 3.10")
    project.python("python3")
    run = project.run("setup.sh")
    assert run.returncode == 0
    assert f"because there is none: {wanted} (3.10), for the cpu" in run.stderr_text


@pytest.mark.parametrize("answer", ["is Python 3.9.18", "lacks libgomp.so.1", None])
def test_no_usable_python(project, answer):
    if answer:
        python = project.python("python3", answer)
    run = project.run("setup.sh")
    assert run.returncode == 1 and run.stdout_text == ""
    assert not answer or f"  {python} {answer}\n" in run.stderr_text
    for words in ("3.10, 3.11 or 3.12", "venv and ensurepip", "conda", "PYTHON=/path"):
        assert words in run.stderr_text
    for packages in ("python3 python3-venv libstdc++6 libgomp1", "python3.12 libstdc++ libgomp"):
        assert f" install {packages}" in run.stderr_text
    assert not (project.root / ".venv").exists()


def test_PYTHON_is_used_or_refused_but_never_replaced(project):
    project.python("python3")
    project.run("setup.sh")
    other = project.python("my python")
    assert project.run("setup.sh", PYTHON=str(other)).stderr_text == READY
    project.python("my python", "ok 3.12")
    run = project.run("setup.sh", PYTHON=str(other))
    assert f"it was made with Python 3.11: {other} (3.12)" in run.stderr_text
    project.python("my python", "is Python 3.8.1")
    run = project.run("setup.sh", PYTHON=str(other))
    assert run.returncode == 1 and f"{other} is Python 3.8.1" in run.stderr_text
    run = project.run("setup.sh", PYTHON="/nowhere/python")
    assert run.returncode == 1 and "at PYTHON=/nowhere/python" in run.stderr_text


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ("sys.version_info = (3, 9, 18)", "is Python 3.9.18"),
        ("sys.version_info = (3, 13, 0)", "is Python 3.13.0"),
        ("sys.version_info = (3, 10, 1)", "ok 3.10"),
        ("sys.modules['ensurepip'] = None", "lacks ensurepip"),
        ("import ctypes; ctypes.CDLL = open", "lacks libstdc++.so.6, lacks libgomp.so.1"),
    ],
)
def test_what_a_python_is_asked(given, answer):
    command = ["bash", "-c", '. "$1"; echo "$base_code"', "x", ROOT / "scripts/setup.sh"]
    code = f"import sys\n{given}\n" + subprocess.check_output(command, text=True)
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == answer + "\n"


# ---- Which device ----


@pytest.mark.parametrize(
    ("nvidia_smi", "setting", "device"),
    [
        (None, "", "cpu"),
        ("exit 0", "", "gpu"),
        ("exit 9", "", "cpu"),
        ("exit 0", "cpu", "cpu"),
        (None, "gpu", "gpu"),
    ],
)
def test_device(project, nvidia_smi, setting, device):
    project.python("python3")
    if nvidia_smi:
        project.program("nvidia-smi", f"#!/bin/sh\n{nvidia_smi}\n")
    run = project.run("setup.sh", TRANSFORMER_MT_DEVICE=setting)
    assert run.returncode == 0, run.stderr_text
    lists = [call.partition(" -r ")[2] for call in project.pip_calls()]
    expected = {
        "cpu": ["requirements.txt"],
        "gpu": [".venv/tmp/others.txt", ".venv/tmp/requirements-gpu.txt"],
    }[device]
    assert [name for name in lists if name][1:] == expected
    assert run.stderr_text.endswith(f".venv is ready (Python 3.11, {device}).\n")


def test_unknown_device(project):
    assert project.run("setup.sh", TRANSFORMER_MT_DEVICE="tpu").returncode == 2


def test_a_finished_environment_keeps_its_device(project):
    project.python("python3")
    project.run("setup.sh")
    project.program("nvidia-smi", "#!/bin/sh\n")
    assert project.run("setup.sh").stderr_text == READY
    run = project.run("setup.sh", TRANSFORMER_MT_DEVICE="gpu")
    assert "because it was made for the cpu" in run.stderr_text


# ---- Once, twice, interrupted, broken ----


def test_setup_installs_once(project):
    project.python("python3")
    run = project.run("setup.sh")
    assert run.returncode == 0, run.stderr_text
    assert run.stdout_text == ""
    assert run.stderr_text.endswith(READY)
    assert project.pip_calls() == BASE + CHECK
    assert project.run("setup.sh").stderr_text == READY
    project.run("setup.sh", "--dev")
    for args in ([], ["--dev"]):
        assert project.run("setup.sh", *args).stderr_text == READY
    assert project.pip_calls() == BASE + CHECK + DEV + CHECK


def test_changed_requirements_are_installed(project):
    project.python("python3")
    project.run("setup.sh", "--dev")
    done = len(project.pip_calls())
    with open(project.root / "requirements.txt", "a") as f:
        f.write("something==1\n")
    assert "Updating .venv, because the requirements" in project.run("setup.sh").stderr_text
    assert project.pip_calls()[done:] == BASE + DEV + CHECK


def move(project):
    old, project.root = project.root, project.root.with_name("new place")
    old.rename(project.root)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (move, "it was made in "),
        (lambda p: (p.root / STAMP).write_text(f"unfinished - - none {p.root}\n"),
         "it is not complete"),
        (lambda p: (p.root / ".venv/bin/python").unlink(), "now has no Python that runs"),
        (lambda p: (p.root / ".venv/bin/has").write_text("3.12"), "now has 3.12"),
        (lambda p: (p.root / ".venv/bin/has").write_text("3.11 without tqdm"), "without tqdm"),
    ],
)  # fmt: skip
def test_what_is_broken_is_made_again(project, harm, words):
    project.python("python3")
    project.run("setup.sh")
    (project.root / ".venv/.old").mkdir()
    harm(project)
    run = project.run("setup.sh")
    assert run.returncode == 0 and words in run.stderr_text
    assert not (project.root / ".venv/.old").exists()
    assert project.pip_calls() == (BASE + CHECK) * 2
    assert project.run("setup.sh").stderr_text == READY


def test_pip_failure_is_explained_and_mended_by_the_next_run(project):
    project.python("python3")
    (project.home / "pip-fails").write_text("ConnectionError: no route")
    run = project.run("train.sh")
    assert run.returncode == 1 and run.stdout_text == ""
    for words in ("ConnectionError: no route", "PIP_INDEX_URL", ".venv/setup.log", "(free: "):
        assert words in run.stderr_text
    assert len(project.pip_calls()) == 1
    (project.home / "pip-fails").unlink()
    run = project.run("setup.sh")
    assert run.returncode == 0 and "not complete" in run.stderr_text


def test_without_a_network(project):
    project.python("python3")
    line = "WARNING: Retrying (Retry(total={}, connect=None)) after connection broken by 'NewConn"
    log = "".join(f"{line.format(n)}\n" for n in (1, 0)) + "ERROR: No matching distribution found"
    (project.home / "pip-fails").write_text(log)
    run = project.run("setup.sh")
    assert run.returncode == 1 and "Retrying" not in run.stderr_text
    for words in ("could not reach the package index", "PIP_INDEX_URL", "PIP_FIND_LINKS"):
        assert words in run.stderr_text


# ---- What it did not make ----


def make_folder(path, name="x", text="mine\n"):
    path.mkdir()
    (path / name).write_text(text)


def make_link(path, target):
    if target.name == "other":
        make_folder(target)
    path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_folder, "did not make it"),
        (lambda venv: make_folder(venv, "pyvenv.cfg", "home = /usr/bin\n"), "did not make it"),
        (lambda venv: venv.write_text("a file in its place"), "did not make it"),
        (lambda venv: make_link(venv, venv.parent / "other"), "did not make it"),
        (lambda venv: make_link(venv, venv.parent / "nowhere"), "did not make it"),
        (lambda venv: make_folder(venv, ".setup_stamp", ""), ".setup_stamp, which"),
        (lambda venv: make_folder(venv, ".setup_stamp", "cpu 3.11 1-2"), "is damaged"),
        (lambda venv: make_folder(venv, ".setup_stamp", "\0\0 \n/x y z v /w"), "is damaged"),
        (lambda venv: make_folder(venv, ".setup_stamp", "tpu 3.11 1-2 none /x"), "is damaged"),
    ],
)
def test_what_it_did_not_make_is_left_alone(project, make, words):
    project.python("python3")
    venv = project.root / ".venv"
    make(venv)
    before = snapshot(project.root)
    for script in ("setup.sh", "train.sh"):
        run = project.run(script)
        assert run.returncode == 1 and run.stdout_text == ""
        assert words in run.stderr_text and "Nothing was changed" in run.stderr_text
        assert snapshot(project.root) == before
    # What the message says helps, also with the space in this path.
    command = re.search(r"mv .*\.venv .*\.venv\.old", run.stderr_text)[0]
    subprocess.run(["bash", "-c", command], check=True)
    assert project.run("setup.sh").returncode == 0
    assert (project.root / ".venv.old").is_symlink() or (project.root / ".venv.old").exists()


def snapshot(folder):
    return {
        path: path.read_bytes() if path.is_file() else path.is_symlink() and path.readlink()
        for path in folder.rglob("*")
    }


def test_an_empty_folder_is_taken(project):
    project.python("python3")
    (project.root / ".venv").mkdir()
    run = project.run("setup.sh")
    assert run.returncode == 0 and "because it is empty" in run.stderr_text


def test_a_link_to_an_empty_folder_is_taken(project, tmp_path):
    project.python("python3")
    other = tmp_path / "larger disk"
    other.mkdir()
    (project.root / ".venv").symlink_to(other)
    run = project.run("setup.sh")
    assert run.returncode == 0 and run.stderr_text.endswith(READY)
    assert (project.root / ".venv").is_symlink() and (other / "bin/python").exists()
    assert project.run("setup.sh").stderr_text == READY
    # It is mended as any other, as long as that deletes nothing.
    with open(project.root / "requirements.txt", "a") as f:
        f.write("something==1\n")
    assert "Updating .venv" in project.run("setup.sh").stderr_text
    (project.home / "pip-fails").touch()
    (other / "bin/has").write_text("3.12")
    assert project.run("setup.sh").returncode == 1
    (project.home / "pip-fails").unlink()
    run = project.run("setup.sh")
    assert run.returncode == 0 and "because it is not complete" in run.stderr_text
    assert (project.root / ".venv").is_symlink()


@pytest.fixture
def linked(project, tmp_path):
    """Another copy of the project, whose environment is that of the first one."""
    project.python("python3")
    assert project.run("setup.sh").returncode == 0
    other = Project(tmp_path / "other")
    other.python("python3")
    other.home = project.home  # where pip is counted
    (other.root / ".venv").symlink_to(project.root / ".venv")
    return other


@pytest.mark.parametrize("outer", [None, "/some/where"])
def test_the_environment_of_another_copy_runs_the_code_of_this_one(project, linked, outer):
    given = {} if outer is None else {"PYTHONPATH": outer}
    run = linked.run("translate.sh", "model", **given)
    assert run.returncode == 0 and run.stderr_text == "" and "<model>" in run.stdout_text
    assert linked.run("setup.sh").stderr_text == READY
    code = '. "$1"; setup; exec "$python" -m transformer_mt path'
    env = {"PATH": str(linked.bin), "HOME": str(linked.home), **given}
    for folder, expected in ((linked, [str(linked.root)]), (project, [])):
        command = ["bash", "-c", code, "x", folder.root / "scripts/setup.sh"]
        output = subprocess.check_output(command, env=env, text=True).strip()
        assert output == ":".join([*expected, *([outer] if outer else [])])
    assert project.pip_calls() == BASE + CHECK


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: (p.root / "requirements.txt").write_text("x==1\n"), "requirements have changed"),
        (lambda p: (p.root / STAMP).resolve().parent.joinpath("bin/has").write_text("3.12"),
         "it was made with Python 3.11 and now has 3.12"),
    ],
)  # fmt: skip
def test_the_environment_of_another_copy_is_not_changed(project, linked, change, words):
    change(linked)
    before = sorted((project.root / ".venv").rglob("*"))
    run = linked.run("train.sh")
    assert run.returncode == 1 and run.stdout_text == ""
    assert f"a link to the environment of {project.root}, which does not suit" in run.stderr_text
    assert words in run.stderr_text
    assert sorted((project.root / ".venv").rglob("*")) == before
    assert project.pip_calls() == BASE + CHECK


def test_an_environment_that_cannot_be_made_is_explained(project):
    path = project.python("python3")
    path.write_text(path.read_text().replace("mkdir -p", "exit 1; mkdir -p"))
    run = project.run("setup.sh")
    assert run.returncode == 1 and "(free: " in run.stderr_text and "log" not in run.stderr_text


# ---- However it is called ----


@pytest.mark.parametrize("shell", ["sh", "dash", "bash --posix"])
def test_other_shells(project, shell):
    """A shell that is not Bash starts Bash."""
    project.python("python3")
    (project.bin / "dash").symlink_to(shutil.which("dash") or shutil.which("sh"))
    run = project.run("setup.sh", shell=shell)
    assert run.returncode == 0 and run.stderr_text.endswith(READY)
    run = project.run("translate.sh", "my model", shell=shell)
    assert run.returncode == 0 and "<my model>" in run.stdout_text


def test_a_link_to_a_script(project, tmp_path):
    project.python("python3")
    for name in ("setup.sh", "train.sh"):
        (tmp_path / name).symlink_to(project.root / "scripts" / name)
        run = project.run(tmp_path / name)
        assert run.returncode == 0, run.stderr_text
    assert run.stdout_text.startswith(f"in {project.root}:\n")
    assert not (tmp_path.parent / ".venv").exists()


@pytest.mark.parametrize("cdpath", ["@", "/:@"])
def test_the_variable_CDPATH(project, cdpath):
    project.python("python3")
    trap = project.elsewhere / "trap" / "scripts"
    trap.mkdir(parents=True)
    command = ["bash", "scripts/setup.sh"]
    env = {"PATH": str(project.bin), "HOME": str(project.home)}
    env["CDPATH"] = cdpath.replace("@", str(trap.parent))
    subprocess.run(command, cwd=project.root, env=env, check=True, capture_output=True)
    assert (project.root / STAMP).exists()


def test_a_copy_outside_of_the_project(project, tmp_path):
    project.python("python3")
    (tmp_path / "bin2").mkdir()
    shutil.copy(project.root / "scripts/setup.sh", tmp_path / "bin2")
    run = project.run(tmp_path / "bin2/setup.sh")
    assert run.returncode == 1 and "it has no requirements.txt" in run.stderr_text
    assert not (tmp_path / ".venv").exists()


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
    run = project.run("setup.sh")
    assert run.returncode == 0 and "because it is not complete" in run.stderr_text


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
