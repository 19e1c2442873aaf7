"""The shell scripts and the lock. Needs no network: where a script would install something, a fake
Python stands in, which answers the questions setup.sh asks and records what it was told to do."""

import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = [
    "requirements.txt",
    "requirements-dev.txt",
    "requirements-ctranslate2.txt",
    "requirements-gpu.txt",
]
STAMP = ".venv/.setup_stamp"
# Everything the scripts call; nothing else is on their PATH here, so no real Python and no GPU.
TOOLS = "awk bash cat cksum cp df dirname flock ls mkdir rm sh sleep tail tr"

FAKE_PYTHON = """#!/bin/sh
case "$*" in
*ensurepip*) echo "@ANSWER@" ;;
*find_spec*) cat "${0%/*}/has" ;;
"-m venv --clear "*) mkdir -p "$4/bin" && cp "$0" "$4/bin/python" && echo "3.11" >"$4/bin/has" ;;
"-m transformer_mt path") echo "$PYTHONPATH" ;;
"-m transformer_mt "* | "-m pytest"*) echo "in $PWD:"; for a in "$@"; do echo "<$a>"; done ;;
"-I -m pip"*)
    echo "$*" >>"$HOME/pip.txt"
    i=0
    while [ -e "$HOME/pip-waits" ] && [ $i -lt 300 ]; do sleep 0.2; i=$((i + 1)); done
    if [ -e "$HOME/pip-fails" ]; then echo "ConnectionError: no route"; exit 1; fi
    ;;
esac
"""


class Project:
    """A copy of the scripts in a folder of its own, with nothing but fakes on the PATH."""

    def __init__(self, folder):
        self.root = folder / "pro ject"
        self.bin = folder / "bin"
        self.home = folder / "home"
        self.elsewhere = folder / "else where"
        for made in (self.root, self.bin, self.home, self.elsewhere):
            made.mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for name in REQUIREMENTS:
            shutil.copy(ROOT / name, self.root)
        for tool in TOOLS.split():
            if path := shutil.which(tool):
                (self.bin / tool).symlink_to(path)

    def program(self, name, text):
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def python(self, name, answer="ok 3.11"):
        return self.program(name, FAKE_PYTHON.replace("@ANSWER@", answer))

    def start(self, script, *args, **env):
        return subprocess.Popen(
            ["bash", str(self.root / "scripts" / script), *args],
            cwd=self.elsewhere,
            env={"PATH": str(self.bin), "HOME": str(self.home), **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script, *args, **env):
        process = self.start(script, *args, **env)
        process.stdout_text, process.stderr_text = process.communicate(timeout=60)
        return process

    def pip_calls(self):
        path = self.home / "pip.txt"
        calls = path.read_text().splitlines() if path.exists() else []
        return [call.removeprefix("-I -m pip ") for call in calls]


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


READY = ".venv is ready (Python 3.11, cpu).\n"
BASE = [
    "install -c requirements.txt pip setuptools setuptools-scm",
    "install --no-build-isolation -r requirements.txt -e .",
]
DEV = ["install --no-build-isolation -r requirements-dev.txt"]
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
    files = {"cpu": "requirements.txt", "gpu": "requirements-gpu.txt"}
    assert f" -r {files[device]} " in project.pip_calls()[1]
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
        (lambda p: (p.root / STAMP).unlink(), "it is not complete"),
        (lambda p: (p.root / ".venv/bin/python").unlink(), "now has no Python that runs"),
        (lambda p: (p.root / ".venv/bin/has").write_text("3.12"), "now has 3.12"),
        (lambda p: (p.root / ".venv/bin/has").write_text("3.11 without tqdm"), "without tqdm"),
    ],
)
def test_what_is_broken_is_made_again(project, harm, words):
    project.python("python3")
    project.run("setup.sh")
    harm(project)
    run = project.run("setup.sh")
    assert run.returncode == 0 and words in run.stderr_text
    assert project.pip_calls() == (BASE + CHECK) * 2
    assert project.run("setup.sh").stderr_text == READY


def test_pip_failure_is_explained_and_mended_by_the_next_run(project):
    project.python("python3")
    (project.home / "pip-fails").touch()
    run = project.run("train.sh")
    assert run.returncode == 1 and run.stdout_text == ""
    for words in ("ConnectionError: no route", "PIP_INDEX_URL", ".venv/setup.log", "(free: "):
        assert words in run.stderr_text
    assert len(project.pip_calls()) == 1
    (project.home / "pip-fails").unlink()
    run = project.run("setup.sh")
    assert run.returncode == 0 and "not complete" in run.stderr_text


def test_what_a_link_points_to_is_not_deleted(project, tmp_path):
    project.python("python3")
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    (project.root / ".venv").symlink_to(other)
    run = project.run("setup.sh")
    assert run.returncode == 1 and "is a link" in run.stderr_text
    assert [path.name for path in other.iterdir()] == ["precious"]


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
    (project.root / STAMP).unlink()
    run = project.run("setup.sh")
    assert run.returncode == 1 and "neither empty nor a finished environment" in run.stderr_text
    assert (other / "bin/python").exists()


def test_a_link_to_nothing_is_explained(project):
    project.python("python3")
    (project.root / ".venv").symlink_to("nowhere")
    run = project.run("setup.sh")
    assert run.returncode == 1 and "is a link to a folder that is neither" in run.stderr_text


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
    project.python("python3")
    (project.root / ".venv").write_text("a file in its place")
    run = project.run("setup.sh")
    assert run.returncode == 1 and "(free: " in run.stderr_text


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_stop_the_installation_at_once(project, number, status):
    project.python("python3")
    (project.home / "pip-waits").touch()
    process = project.start("train.sh")
    wait_for(project.pip_calls)
    process.send_signal(number)
    assert process.wait(timeout=30) == status  # pip would wait for a minute
    assert not (project.root / STAMP).exists()
    process.communicate()


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


# ---- What reaches the program ----


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


# ---- The lock ----


def requirements(name):
    lines = (re.sub(r"(^|\s)#.*", "", s).strip() for s in (ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("-")]


def test_the_lock_is_exact():
    for name in REQUIREMENTS[:3]:
        for requirement in requirements(name):
            assert [s.operator for s in requirement.specifier] == ["=="], requirement
            assert "*" not in str(requirement.specifier), requirement
    names = [canonicalize_name(r.name) for f in REQUIREMENTS[:3] for r in requirements(f)]
    assert len(names) == len(set(names))


def test_the_gpu_list_takes_its_versions_from_the_lock():
    locked = {canonicalize_name(r.name) for r in requirements("requirements.txt")}
    (paddle,) = (r for r in requirements("requirements.txt") if r.name == "paddlepaddle")
    for requirement in requirements("requirements-gpu.txt"):
        if requirement.name == "paddlepaddle-gpu":
            assert requirement.specifier == paddle.specifier
        else:
            assert canonicalize_name(requirement.name) in locked and not requirement.specifier
    assert "-c requirements.txt" in (ROOT / "requirements-gpu.txt").read_text().splitlines()


def test_mirrors_are_respected():
    """No file names a package index, except Paddle's own for the GPU, which has no mirrors."""
    for path in [*(ROOT / "scripts").glob("*.sh"), *(ROOT / name for name in REQUIREMENTS)]:
        for line in path.read_text().splitlines():
            if "://" in line or "index-url" in line:
                assert path.name == "requirements-gpu.txt"
                assert line.startswith("--extra-index-url https://www.paddlepaddle.org.cn/")


@pytest.mark.skipif(
    Path(sys.prefix) != ROOT / ".venv" or not (ROOT / STAMP).exists(),
    reason="not in the environment that setup.sh makes",
)
class TestRealEnvironment:
    def test_nothing_to_do(self):
        command = ["bash", str(ROOT / "scripts/setup.sh"), "--dev"]
        run = subprocess.run(command, cwd="/", capture_output=True, text=True)
        assert run.returncode == 0
        assert re.fullmatch(r"\.venv is ready \(.*\)\.\n", run.stderr) and run.stdout == ""

    def test_it_is_what_the_lock_says(self):
        # Importing setuptools, as Paddle does, puts the copies it carries on the path as well.
        folder = [sysconfig.get_path("purelib")]
        installed = {
            canonicalize_name(found.metadata["Name"]): found.version
            for found in distributions(path=folder)
        }
        for requirement in [
            *requirements("requirements.txt"),
            *requirements("requirements-dev.txt"),
            *requirements("requirements-ctranslate2.txt"),
        ]:
            if requirement.name == "paddlepaddle" and "paddlepaddle-gpu" in installed:
                continue
            if requirement.marker is None or requirement.marker.evaluate():
                version = installed[canonicalize_name(requirement.name)]
                assert requirement.specifier.contains(version, prereleases=True), requirement

    def test_pip_check(self):
        command = [sys.executable, "-m", "pip", "check"]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout

    def test_the_program_is_found_from_anywhere(self, tmp_path):
        code = "import transformer_mt; print(transformer_mt.__file__)"
        out = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
        assert Path(out.strip()).parent == ROOT / "transformer_mt"
