"""What is read of the processor, and what follows from it for Paddle's matrix products."""

import os
import subprocess
import sys

import pytest

from tests.support import ROOT
from transformer_mt.utils import device

SECOND = "processor : 1\nvendor_id : AuthenticAMD\nmodel name : second\nflags : avx2\n"


@pytest.mark.parametrize(
    "first, name, is_amd",
    [
        ("vendor_id\t: AuthenticAMD\nmodel name\t: EPYC: 7\nflags\t\t: sse avx2", "EPYC: 7", True),
        ("vendor_id : AuthenticAMD\nmodel name : Opteron\nflags : sse avx", "Opteron", False),
        ("vendor_id : GenuineIntel\nmodel name : Xeon\nflags : avx2 avx512f", "Xeon", False),
        ("processor : 0\nFeatures : fp asimd\nodd line", os.uname().machine, False),  # ARM
    ],
)
def test_the_first_processor_counts(tmp_path, monkeypatch, first, name, is_amd):
    path = tmp_path / "cpuinfo"
    path.write_text(f"{first}\n\n{SECOND}")
    monkeypatch.setattr(device, "CPUINFO", str(path))
    assert device.processor_name() == name
    assert device.is_amd_with_avx2() == is_amd


@pytest.mark.parametrize("given", [None, "", "4"])
def test_the_setting_of_mkl(given):
    """It is made before Paddle is imported, only where it helps, and not over the user's."""
    code = "import os, transformer_mt; print(repr(os.environ.get('MKL_DEBUG_CPU_TYPE')))"
    environment = {k: v for k, v in os.environ.items() if k != "MKL_DEBUG_CPU_TYPE"}
    if given is not None:
        environment["MKL_DEBUG_CPU_TYPE"] = given
    found = subprocess.check_output(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, text=True
    )
    default = "5" if device.is_amd_with_avx2() else None
    assert found.strip() == repr(default if given is None else given)
