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
READY = ".venv is ready (Python 3.11, gpu).\n"

# Recent drivers write "UMD".
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


def set_driver(project, cuda, *capabilities, header=OLD_HEADER):
    text = NVIDIA_SMI.replace("@HEADER@", header.format(cuda))
    words = " ".join(f"'{capability}'" for capability in capabilities or ["8.6"])
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
    ("header", "cuda", "capabilities", "build"),
    [
        (OLD_HEADER, "11.8", [], "cu118"),
        (OLD_HEADER, "12.4", ['Field "compute_cap" is not a valid field to query.'], "cu118"),
        (OLD_HEADER, "12.6", ["[N/A]"], "cu126"),
        (NEW_HEADER, "12.10", ["10.0"], "cu129"),
        (OLD_HEADER, "13.0", ["7.0"], "cu129"),  # V100: CUDA 13 has no support for it
        (OLD_HEADER, "13.0", ["8.0", "6.1"], "cu129"),
        (OLD_HEADER, "13.0", ["7.5"], "cu130"),
        (NEW_HEADER, "14.0", ["12.0"], "cu130"),
    ],
)
def test_the_newest_build_that_the_driver_and_the_gpus_support(
    project, header, cuda, capabilities, build
):
    set_driver(project, cuda, *capabilities, header=header)
    run = project.run("setup.sh")
    assert run.returncode == 0 and run.stderr_text.endswith(READY), run.stderr_text
    assert f"The driver supports CUDA {cuda}, so the build {build}" in run.stderr_text
    assert f"CUDA {build[2:4]}.{build[4]}.\n" in run.stderr_text
    assert build_of(project) == build and INSTALL in project.pip_calls()


@pytest.mark.parametrize(
    ("cuda", "capabilities", "needed"),
    [("11.4", [], "11.8"), ("12.8", ["8.9", "12.0"], "12.9")],
)
def test_a_driver_that_is_too_old_for_all_builds(project, cuda, capabilities, needed):
    set_driver(project, cuda, *capabilities)
    run = project.run("setup.sh")
    assert run.returncode == 1 and not (project.root / ".venv").exists()
    assert f"until nvidia-smi shows CUDA {needed} or newer" in run.stderr_text
    # What is offered works.
    build = f"cu{needed.replace('.', '')}"
    for name, value, made in (("CUDA", build, build), ("DEVICE", "cpu", "cpu")):
        assert f"TRANSFORMER_MT_{name}={value} bash scripts/setup.sh" in run.stderr_text
        assert project.run("setup.sh", **{f"TRANSFORMER_MT_{name}": value}).returncode == 0
        assert build_of(project) == made


@pytest.mark.parametrize(
    ("nvidia_smi", "setting", "build"),
    [
        ("exit 9", {}, "cpu"),
        ("exit 0", {"TRANSFORMER_MT_DEVICE": "cpu"}, "cpu"),
        ("exit 0", {}, "cu126"),
        ("echo '| CUDA Version: N/A  |'", {}, "cu126"),
        ("exit 9", {"TRANSFORMER_MT_DEVICE": "gpu"}, "cu126"),
        ("exit 0", {"TRANSFORMER_MT_CUDA": "cu129"}, "cu129"),
        ("exit 9", {"TRANSFORMER_MT_CUDA": "cu129"}, "cpu"),
    ],
)
def test_without_a_version_of_the_driver(project, nvidia_smi, setting, build):
    project.program("nvidia-smi", f"#!/bin/sh\n{nvidia_smi}\n")
    run = project.run("setup.sh", **setting)
    assert run.returncode == 0 and build_of(project) == build
    assert ("does not show which CUDA version" in run.stderr_text) == (build == "cu126")


# ---- A finished environment ----


def write(name, text):
    return lambda project: (project.root / name).write_text(text)


def forget_the_build(project):
    """As earlier versions wrote the stamp, which had the usual build alone."""
    stamp = project.root / STAMP
    stamp.write_text(stamp.read_text().replace("gpu-cu118", "gpu"))


@pytest.mark.parametrize(
    ("change", "setting", "words", "build"),
    [
        (None, {"TRANSFORMER_MT_CUDA": "cu118"}, READY, "cu118"),
        (None, {"TRANSFORMER_MT_DEVICE": "gpu"}, READY, "cu118"),
        (lambda p: (p.bin / "nvidia-smi").unlink(), {}, READY, "cu118"),
        (forget_the_build, {"TRANSFORMER_MT_CUDA": "cu126"}, READY, ""),
        (write("requirements.txt", "pip==1\n"), {}, "because the requirements", "cu118"),
        (None, {"TRANSFORMER_MT_CUDA": "cu126"}, "made with the build cu118", "cu126"),
        (write(".venv/bin/has", "3.11 without tqdm"), {}, "without tqdm", "cu130"),
    ],
)
def test_a_finished_environment_keeps_its_build(project, change, setting, words, build):
    """Whatever the driver is now, until it is made again."""
    set_driver(project, "12.4")
    project.run("setup.sh")
    calls = len(project.pip_calls())
    set_driver(project, "13.0")
    if change:
        change(project)
    run = project.run("setup.sh", **setting)
    assert words in run.stderr_text and run.stderr_text.endswith(READY)
    assert build_of(project) == (build or "gpu")
    assert (len(project.pip_calls()) == calls) == (run.stderr_text == READY)


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
        needs = ["httpx", "numpy>=1.21", "opt_einsum==3.3.0", f"{nvidia}=={number}"]
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


@pytest.mark.slow
def test_pip_installs_the_build_for_the_driver(indexed):
    set_driver(indexed, "12.4")
    run = indexed.run("setup.sh", **indexed.env)
    assert run.returncode == 0, run.stderr_text
    check_installed(indexed, "cu118")
    assert indexed.run("setup.sh").stderr_text.startswith(".venv is ready (Python 3.")


def change_a_wheel(index):
    add_to_index(index / "simple", "tqdm", dict(locked_versions())["tqdm"], text="changed = True")


def ask_for_another_version(index):
    add_to_index(index / "stable/cu118", PADDLE.name, "3.3.1", ["tqdm>=9999"])
    add_to_index(index / "stable/cu118", "tqdm", "9999.0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "words"),
    [(change_a_wheel, "DO NOT MATCH THE HASHES"), (ask_for_another_version, "tqdm==")],
)
def test_pip_installs_nothing_but_what_is_locked(indexed, spoil, words):
    set_driver(indexed, "12.4")
    spoil(indexed.root.parent / "index")
    run = indexed.run("setup.sh", **indexed.env)
    assert run.returncode == 1 and words in run.stderr_text
    assert "unfinished" in (indexed.root / STAMP).read_text()
