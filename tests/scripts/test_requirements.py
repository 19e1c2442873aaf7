"""The lists of requirements, and the environment that is made from them."""

import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.scripts.fake_project import REQUIREMENTS, STAMP, requirements
from tests.support import ROOT


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
