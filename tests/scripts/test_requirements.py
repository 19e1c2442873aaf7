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
from tests.scripts.fake_project import REQUIREMENTS, STAMP, requirements
from tests.support import ROOT, demo_pairs, make_config, write_pairs
from transformer_mt.config.file import dump

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


LOCKS = REQUIREMENTS[:3]


def test_the_lock_is_exact():
    """Every package has one version in all lists together, and the hashes of its files."""
    versions = {}
    for name in LOCKS:
        text = (ROOT / name).read_text()
        entries = re.findall(
            r"(?m)^(\S.*?) \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text
        )
        assert len(entries) == len(requirements(name)) > 10
        names = [canonicalize_name(r.name) for r in requirements(name)]
        assert len(names) == len(set(names))
        for requirement in requirements(name):
            assert [s.operator for s in requirement.specifier] == ["=="], requirement
            assert "*" not in str(requirement.specifier), requirement
            specifier = versions.setdefault(requirement.name, requirement.specifier)
            assert specifier == requirement.specifier


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("requirements.txt", ["environment"]),
        ("requirements-ctranslate2.txt", ["without-paddle"]),
        ("requirements-dev.txt", ["dev"]),
    ],
)
def test_the_lock_has_what_pyproject_asks_for(name, groups):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [text for group in groups for text in project["dependency-groups"][group]]
    if name == "requirements.txt":
        extras = project["project"]["optional-dependencies"]
        wanted += [*project["project"]["dependencies"], *extras["serve"], *extras["report"]]
    locked = {canonicalize_name(r.name): next(iter(r.specifier)) for r in requirements(name)}
    for requirement in map(Requirement, wanted):
        version = locked[canonicalize_name(requirement.name)].version
        assert requirement.specifier.contains(version), requirement


def test_every_file_names_the_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["version"] == citation["version"] == transformer_mt.__version__
    assert project["license"] == citation["license"]


# PaddleNLP, which reads the text, imports FastAPI and Jinja itself.
OPTIONAL = ("fastapi_offline", "prometheus_client", "uvicorn", "matplotlib")


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


def test_the_lists_for_other_environments_bring_no_paddle():
    for name in LOCKS[1:]:
        assert not any(r.name.startswith("paddle") for r in requirements(name))


def test_the_gpu_list_has_the_paddle_of_the_lock():
    (paddle,) = (r for r in requirements("requirements.txt") if r.name == "paddlepaddle")
    (gpu,) = requirements("requirements-gpu.txt")
    assert gpu.name == "paddlepaddle-gpu" and gpu.specifier == paddle.specifier


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
