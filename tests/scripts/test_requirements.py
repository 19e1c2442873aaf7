"""The lists of requirements, and the environment that is made from them."""

import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import transformer_mt
from tests.scripts.fake_project import STAMP, requirements
from tests.support import ROOT, demo_pairs, make_config, write_pairs
from transformer_mt.config.file import dump

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


# Each list of packages, and the groups of pyproject.toml that it is the lock of.
LOCKS = {
    "requirements.txt": ["environment"],
    "requirements-ctranslate2.txt": ["without-paddle"],
    "requirements-dev.txt": ["dev"],
}


def locked(name):
    return {canonicalize_name(r.name): r.specifier for r in requirements(name)}


def test_the_locks_have_one_version_of_each_package():
    versions = {}
    for name in LOCKS:
        for package, specifier in locked(name).items():
            assert re.fullmatch(r"==[^*,]+", str(specifier)), package
            assert versions.setdefault(package, specifier) == specifier, package


@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_has_what_pyproject_asks_for(name):
    """And the hashes of its files."""
    entry = r"(?m)^\S.*? \\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
    versions = locked(name)
    entries = re.findall(entry, (ROOT / name).read_text())
    assert len(entries) == len(requirements(name)) == len(versions) > 10
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [text for group in LOCKS[name] for text in project["dependency-groups"][group]]
    if name == "requirements.txt":
        extras = project["project"]["optional-dependencies"]
        wanted += [*project["project"]["dependencies"], *extras["serve"], *extras["report"]]
    else:  # these are for other environments too
        assert not any(package.startswith("paddle") for package in versions)
    for requirement in map(Requirement, wanted):
        (version,) = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version.version), requirement


def test_every_file_names_the_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == citation["version"] == transformer_mt.__version__


# PaddleNLP, which reads the text, imports FastAPI and Jinja itself.
OPTIONAL = ("fastapi_offline", "prometheus_client", "uvicorn", "matplotlib")


@pytest.mark.slow
def test_training_needs_no_optional_package(tmp_path):
    """Without them it trains to its end, and says how to get the report."""
    for name in ("train", "dev", "test"):
        write_pairs(tmp_path / "text", name, demo_pairs(60))
    path = tmp_path / "recipe.yaml"
    data = {"dev": "dev", "test": "test", "held_out": 0}
    training = {"max_steps": 2, "validate_every": 2, "devices": 1}
    path.write_text(dump(make_config(tmp_path, data=data, training=training)), encoding="utf-8")
    without = "".join(f"sys.modules[{name!r}] = None; " for name in OPTIONAL)
    code = f"import sys; {without}from transformer_mt.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code]
    for arguments, exit_code in ((["train", path], 0), (["serve", tmp_path / "model"], 1)):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == exit_code, done.stderr
        extra = "report" if exit_code == 0 else "serve"
        assert f"pip install 'transformer-mt[{extra}]'" in done.stderr
    assert (tmp_path / "model" / "test.hypothesis").is_file()
    assert not (tmp_path / "model" / "report.html").exists()


def test_the_gpu_list_has_the_paddle_of_the_lock():
    (paddle,) = (r for r in requirements("requirements.txt") if r.name == "paddlepaddle")
    (gpu,) = requirements("requirements-gpu.txt")
    assert gpu.name == "paddlepaddle-gpu" and gpu.specifier == paddle.specifier


@pytest.mark.skipif(
    Path(sys.prefix) != ROOT / ".venv" or not (ROOT / STAMP).exists(),
    reason="not in the environment that setup.sh makes",
)
def test_this_environment_is_what_the_lock_says():
    command = ["bash", str(ROOT / "scripts/setup.sh"), "--dev"]
    run = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr.startswith(".venv is ready (") and run.stdout == ""
    # Importing setuptools, as Paddle does, puts the copies it carries on the path as well.
    folder = [sysconfig.get_path("purelib")]
    found = distributions(path=folder)
    installed = {canonicalize_name(each.metadata["Name"]): each.version for each in found}
    for requirement in requirements("requirements.txt") + requirements("requirements-dev.txt"):
        if requirement.name == "paddlepaddle" and "paddlepaddle-gpu" in installed:
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            version = installed[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), requirement
