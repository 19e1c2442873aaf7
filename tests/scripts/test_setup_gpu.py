"""What setup.sh does with a GPU. `nvidia-smi` is a fake that prints the header of a driver, and the
package indexes are folders of empty wheels, so that neither a GPU nor a network is needed."""

import ensurepip
import hashlib
import inspect
import os
import re
import sys
import zipfile

import pytest
from packaging.utils import canonicalize_name

from tests.scripts.fake_project import STAMP, Project, requirements
from tests.support import ROOT

PADDLE = next(r for r in requirements("requirements-gpu.txt") if r.name == "paddlepaddle-gpu")
BUILDS = ("cu118", "cu126", "cu129", "cu130")
INDEX = "https://www.paddlepaddle.org.cn/packages"
LIST = "requirements-gpu.txt"
INSTALL = f"install --no-build-isolation -c .venv/tmp/versions.txt -r .venv/tmp/{LIST}"

OLD_HEADER = "| NVIDIA-SMI 550.54.15      Driver Version: 550.54.15      CUDA Version: {:<9}|"
NEW_HEADER = "| NVIDIA-SMI 610.43.02      KMD Version: 610.43.02     CUDA UMD Version: {:<9}|"
NVIDIA_SMI = """#!/bin/sh
case "$*" in
'') cat <<'END'
Mon Nov 23 04:12:12 2026
+---------------------------------------------------------------------------------------+
@HEADER@
|-----------------------------------------+----------------------+----------------------+
END
;;
--query-gpu=compute_cap*) printf '%s\\n' @CAPABILITIES@ ;;
esac
"""


def set_driver(project, cuda, capabilities=("8.6",), header=OLD_HEADER):
    text = NVIDIA_SMI.replace("@HEADER@", header.format(cuda))
    words = " ".join(f"'{capability}'" for capability in capabilities)
    project.program("nvidia-smi", text.replace("@CAPABILITIES@", words))


def build_of(project):
    """The build of PaddlePaddle that the environment was made with, as the stamp says."""
    device, *_ = (project.root / STAMP).read_text().split()
    return device.removeprefix("gpu-")


@pytest.fixture
def project(project):
    project.python("python3")
    return project


# ---- Which build ----


@pytest.mark.parametrize(
    ("header", "cuda", "build"),
    [
        (OLD_HEADER, "11.8", "cu118"),
        (OLD_HEADER, "12.0", "cu118"),
        (OLD_HEADER, "12.4", "cu118"),
        (OLD_HEADER, "12.6", "cu126"),
        (OLD_HEADER, "12.8", "cu126"),
        (OLD_HEADER, "12.9", "cu129"),
        (NEW_HEADER, "12.10", "cu129"),
        (OLD_HEADER, "13.0", "cu130"),
        (NEW_HEADER, "13.3", "cu130"),
        (NEW_HEADER, "14.0", "cu130"),
    ],
)
def test_the_newest_build_that_the_driver_supports(project, header, cuda, build):
    set_driver(project, cuda, header=header)
    run = project.run("setup.sh")
    assert run.returncode == 0, run.stderr_text
    version = f"{build[2:4]}.{build[4]}"
    assert (
        f"The driver supports CUDA {cuda}, so the build {build} of PaddlePaddle is installed, for"
        f" CUDA {version}.\n" in run.stderr_text
    )
    assert build_of(project) == build
    assert INSTALL in project.pip_calls()
    assert project.run("setup.sh").stderr_text == ".venv is ready (Python 3.11, gpu).\n"


@pytest.mark.parametrize("cuda", ["10.2", "11.4"])
def test_a_driver_that_is_too_old_for_all_builds(project, cuda):
    set_driver(project, cuda)
    run = project.run("setup.sh")
    assert run.returncode == 1 and run.stdout_text == ""
    assert f"CUDA {cuda}, and the oldest build that fits the GPU needs CUDA 11.8" in run.stderr_text
    for words in (
        "until nvidia-smi shows CUDA 11.8 or newer",
        "TRANSFORMER_MT_DEVICE=cpu bash scripts/setup.sh",
        "TRANSFORMER_MT_CUDA=cu118 bash scripts/setup.sh",
    ):
        assert words in run.stderr_text
    assert not (project.root / ".venv").exists()
    # What is offered works.
    assert project.run("setup.sh", TRANSFORMER_MT_CUDA="cu118").returncode == 0
    assert build_of(project) == "cu118"
    assert project.run("setup.sh", TRANSFORMER_MT_DEVICE="cpu").returncode == 0
    assert build_of(project) == "cpu"


@pytest.mark.parametrize(
    ("cuda", "capabilities", "build"),
    [
        ("13.0", ["7.0"], "cu129"),  # V100: CUDA 13 has no support for it
        ("13.0", ["8.0", "6.1"], "cu129"),
        ("13.0", ["7.5"], "cu130"),
        ("13.0", ["12.0"], "cu130"),
        ("12.9", ["10.0"], "cu129"),
        ("12.6", ["[N/A]"], "cu126"),
        ("12.4", ['Field "compute_cap" is not a valid field to query.'], "cu118"),
        ("12.4", [""], "cu118"),
    ],
)
def test_the_build_supports_the_gpus(project, cuda, capabilities, build):
    set_driver(project, cuda, capabilities)
    assert project.run("setup.sh").returncode == 0
    assert build_of(project) == build


def test_a_driver_that_is_too_old_for_the_builds_with_the_gpu(project):
    set_driver(project, "12.8", ["8.9", "12.0"])
    run = project.run("setup.sh")
    assert run.returncode == 1
    assert "until nvidia-smi shows CUDA 12.9 or newer" in run.stderr_text
    assert "TRANSFORMER_MT_CUDA=cu129" in run.stderr_text


@pytest.mark.parametrize("cuda", ["N/A", "ERR!", ""])
def test_a_header_that_cannot_be_read(project, cuda):
    set_driver(project, cuda)
    run = project.run("setup.sh")
    assert run.returncode == 0
    assert "does not show which CUDA version the driver supports" in run.stderr_text
    assert "the build cu126 of PaddlePaddle is installed, for CUDA 12.6" in run.stderr_text
    assert build_of(project) == "cu126"


def test_no_nvidia_smi(project):
    run = project.run("setup.sh", TRANSFORMER_MT_DEVICE="gpu")
    assert run.returncode == 0 and "so the build cu126" in run.stderr_text
    assert build_of(project) == "cu126"


# ---- A build that was asked for ----


def test_the_build_that_was_asked_for_is_installed_on_any_driver(project):
    set_driver(project, "12.4")
    run = project.run("setup.sh", TRANSFORMER_MT_CUDA="cu126")
    assert run.returncode == 0 and "The driver supports" not in run.stderr_text
    assert build_of(project) == "cu126"


@pytest.mark.parametrize("build", ["cu127", "12.6", "cu118 cu126", "none"])
def test_unknown_build(project, build):
    run = project.run("setup.sh", TRANSFORMER_MT_CUDA=build)
    assert run.returncode == 2
    assert f'TRANSFORMER_MT_CUDA is "{build}", but it must be one of' in run.stderr_text
    assert all(known in run.stderr_text for known in BUILDS)


def test_a_build_changes_nothing_on_the_cpu(project):
    project.run("setup.sh", TRANSFORMER_MT_CUDA="cu129")
    assert build_of(project) == "cpu"
    run = project.run("setup.sh", TRANSFORMER_MT_CUDA="cu118")
    assert run.stderr_text == ".venv is ready (Python 3.11, cpu).\n"


READY = ".venv is ready (Python 3.11, gpu).\n"


def test_a_finished_environment_keeps_its_build(project):
    set_driver(project, "12.4")
    project.run("setup.sh")
    calls = len(project.pip_calls())
    set_driver(project, "13.0")
    for env in ({}, {"TRANSFORMER_MT_CUDA": "cu118"}, {"TRANSFORMER_MT_DEVICE": "gpu"}):
        assert project.run("setup.sh", **env).stderr_text == READY
    (project.bin / "nvidia-smi").unlink()
    assert project.run("setup.sh").stderr_text == READY
    assert len(project.pip_calls()) == calls
    # Changed requirements are installed from the index of the same build.
    with open(project.root / "requirements.txt", "a") as f:
        f.write("something==1\n")
    assert "Updating .venv, because the requirements" in project.run("setup.sh").stderr_text
    assert INSTALL in project.pip_calls()[calls:]
    assert build_of(project) == "cu118"


def test_it_is_made_again_for_another_build(project):
    set_driver(project, "12.4")
    project.run("setup.sh")
    run = project.run("setup.sh", TRANSFORMER_MT_CUDA="cu126")
    assert "because it was made with the build cu118 of PaddlePaddle" in run.stderr_text
    assert build_of(project) == "cu126"
    assert project.run("setup.sh").stderr_text == READY


def test_an_environment_of_an_earlier_version_has_the_usual_build(project):
    set_driver(project, "12.6")
    project.run("setup.sh")
    stamp = project.root / STAMP
    stamp.write_text(stamp.read_text().replace("gpu-cu126", "gpu"))
    set_driver(project, "13.0")
    assert project.run("setup.sh").stderr_text == READY
    assert project.run("setup.sh", TRANSFORMER_MT_CUDA="cu126").stderr_text == READY


def test_what_is_broken_is_made_again_for_the_driver_of_today(project):
    set_driver(project, "12.4")
    project.run("setup.sh")
    (project.root / ".venv/bin/has").write_text("3.11 without tqdm")
    set_driver(project, "12.9")
    run = project.run("setup.sh")
    assert "without tqdm" in run.stderr_text and build_of(project) == "cu129"


# ---- With pip, from a local index ----

MODULES = {"paddlepaddle-gpu": "paddle", "pyyaml": "yaml"}
# PaddlePaddle's own index has NVIDIA's libraries too, in versions that the lock does not name.
NVIDIA = "nvidia-cublas-cu{}"
# Builds the package of the project for pip, without setuptools. `write_wheel` comes before it.
BACKEND = """

def build_editable(folder, config_settings=None, metadata_directory=None):
    files = {{"here.pth": str(Path(__file__).parent)}}
    return write_wheel(Path(folder), "transformer-mt", "0.1.0", files, {needs!r}).name
"""


def write_wheel(folder, name, version, files, needs):
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata += [f"Requires-Dist: {need}" for need in needs]
    files = {
        **files,
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for inside, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(inside, text)
    return path


def add_to_index(folder, name, version, needs=(), text=""):
    """Adds a wheel that holds one module, with a text, and the page that lists it."""
    name = canonicalize_name(name)
    module = MODULES.get(name, name.replace("-", "_"))
    path = write_wheel(folder / name, name, version, {f"{module}.py": text}, needs)
    (folder / name / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>\n')
    return hashlib.sha256(path.read_bytes()).hexdigest()


def locked_versions():
    """The versions of the lock, of which this Python needs all but pip and PaddlePaddle."""
    for requirement in requirements("requirements.txt"):
        if requirement.name not in ("pip", "paddlepaddle"):
            (specifier,) = requirement.specifier
            yield requirement.name, specifier.version


def write_lock(project, index):
    """Adds empty wheels of what the lock has to the index, and their hashes to the lock. The pip of
    this test is the one that Python itself brings."""
    entries = [f"pip=={ensurepip.version()} --hash=sha256:{0:064}\n"]
    entries += [f"paddlepaddle==3.3.1 --hash=sha256:{0:064}\n"]
    for name, version in locked_versions():
        digest = add_to_index(index, name, version)
        entries.append(f"{name}=={version} \\\n    --hash=sha256:{digest}\n")
    (project.root / "requirements.txt").write_text("".join(sorted(entries)))


@pytest.fixture
def indexed(tmp_path):
    """A project with its own package, the real list for the GPU, and indexes of empty wheels."""
    project = Project(tmp_path)
    usual, paddles = tmp_path / "index" / "simple", tmp_path / "index" / "stable"
    write_lock(project, usual)
    (pinned,) = PADDLE.specifier
    for build in BUILDS:
        nvidia, number = NVIDIA.format(build[2:4]), f"{build[2:4]}.{build[4]}.1"
        needs = [
            "httpx", "numpy>=1.21", "protobuf>=3.20.2", "Pillow", "opt_einsum==3.3.0",
            "networkx", "typing_extensions", "safetensors>=0.6.0", f"{nvidia}=={number}",
        ]  # fmt: skip
        add_to_index(paddles / build, PADDLE.name, pinned.version, needs, f"build = '{build}'")
        add_to_index(paddles / build, nvidia, number)
    path = project.root / LIST
    assert path.read_text().count(f"{INDEX}/stable/cu126/") == 1
    path.write_text(path.read_text().replace(INDEX, (tmp_path / "index").as_uri()))

    own = re.search(r"(?ms)^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text())
    backend = BACKEND.format(needs=re.findall('"(.+)"', own[1]))
    (project.root / "backend.py").write_text(
        f"import zipfile\nfrom pathlib import Path\n\n{inspect.getsource(write_wheel)}{backend}"
    )
    (project.root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    package = project.root / "transformer_mt"
    package.mkdir()
    (package / "__init__.py").touch()
    project.env = {
        "PYTHON": getattr(sys, "_base_executable", sys.executable),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": usual.as_uri(),
        "PIP_NO_CACHE_DIR": "1",
    }
    return project


def packages(project):
    (folder,) = (project.root / ".venv" / "lib").glob("python3*/site-packages")
    found = {}
    for path in folder.glob("*.dist-info"):
        name, version = path.name.removesuffix(".dist-info").split("-")
        found[canonicalize_name(name)] = version
    return folder, found


def check_installed(project, build):
    folder, found = packages(project)
    assert (folder / "paddle.py").read_text() == f"build = '{build}'"
    assert {name for name in found if name.startswith("nvidia")} == {NVIDIA.format(build[2:4])}
    assert found[NVIDIA.format(build[2:4])] == f"{build[2:4]}.{build[4]}.1"
    assert "paddlepaddle" not in found  # the two would overwrite each other
    locked = {canonicalize_name(name): version for name, version in locked_versions()}
    assert locked.keys() < found.keys()
    for name in found.keys() & locked.keys():
        assert found[name] == locked[name]
    assert found.keys() - locked.keys() == {
        *("paddlepaddle-gpu", NVIDIA.format(build[2:4]), "pip", "transformer-mt")
    }
    assert not (project.root / ".venv/tmp").exists()


def test_pip_installs_the_build_for_the_driver(indexed):
    set_driver(indexed, "12.4")
    run = indexed.run("setup.sh", **indexed.env)
    assert run.returncode == 0, run.stderr_text
    check_installed(indexed, "cu118")
    assert indexed.run("setup.sh").stderr_text.startswith(".venv is ready (Python 3.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cuda", "build"), [("12.8", "cu126"), ("12.9", "cu129"), ("13.0", "cu130")]
)
def test_pip_installs_each_build(indexed, cuda, build):
    set_driver(indexed, cuda)
    run = indexed.run("setup.sh", **indexed.env)
    assert run.returncode == 0, run.stderr_text
    check_installed(indexed, build)
    other = {"TRANSFORMER_MT_CUDA": "cu118", **indexed.env}
    run = indexed.run("setup.sh", **other)
    assert run.returncode == 0, run.stderr_text
    check_installed(indexed, "cu118")


@pytest.mark.slow
def test_a_missing_wheel_is_explained(indexed):
    set_driver(indexed, "13.0")
    (indexed.root.parent / "index/stable/cu130/paddlepaddle-gpu/index.html").write_text("")
    run = indexed.run("setup.sh", **indexed.env)
    assert run.returncode == 1 and "unfinished" in (indexed.root / STAMP).read_text()
    for words in ("No matching distribution found for paddlepaddle-gpu", "TRANSFORMER_MT_DEVICE"):
        assert words in run.stderr_text


def test_a_wheel_with_another_hash_is_refused(indexed):
    set_driver(indexed, "12.6")
    folder = indexed.root.parent / "index/simple/tqdm"
    (version,) = (v for name, v in locked_versions() if name == "tqdm")
    add_to_index(folder.parent, "tqdm", version, text="changed = True")
    run = indexed.run("setup.sh", **indexed.env)
    assert run.returncode == 1 and "DO NOT MATCH THE HASHES" in run.stderr_text
    assert "tqdm" not in packages(indexed)[1]


def test_paddle_cannot_change_the_versions_of_the_lock(indexed):
    set_driver(indexed, "12.6")
    stable = indexed.root.parent / "index/stable/cu126"
    add_to_index(stable, PADDLE.name, "3.3.1", ["tqdm>=9999"])
    add_to_index(stable, "tqdm", "9999.0")
    run = indexed.run("setup.sh", **indexed.env)
    assert run.returncode == 1 and "tqdm==" in run.stderr_text
    assert packages(indexed)[1]["tqdm"] != "9999.0"
