"""What setup.sh does with a GPU. `nvidia-smi` is a fake that prints the header of a driver."""

import re

import pytest

from tests.scripts.fake_project import STAMP

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


# ---- What pip is given ----


def test_the_lists_for_pip(project):
    """All of the lock but PaddlePaddle, with hashes; the same versions as constraints; and the
    index of the build in the place of the usual one. NVIDIA's libraries have no hashes."""
    set_driver(project, "12.4")
    project.run("setup.sh")
    entry = r"(?m)^[a-z].*\n(?: +--hash.*\n)+"
    entries = re.findall(entry, (project.root / "requirements.txt").read_text())
    others = [entry for entry in entries if not entry.startswith("paddlepaddle==")]
    assert len(others) == len(entries) - 1
    assert re.findall(entry, project.given("others.txt")) == others
    versions = [entry.partition(" \\\n")[0] for entry in entries]
    assert project.given("versions.txt").splitlines() == versions
    usual = (project.root / LIST).read_text()
    assert "/cu126/" in usual
    assert project.given(LIST) == usual.replace("cu126", "cu118")
