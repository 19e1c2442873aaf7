"""Facts about the processor, as Linux tells them. The package imports this module first of all."""

import platform
from itertools import takewhile

CPUINFO = "/proc/cpuinfo"


def name() -> str:
    """Returns the name of the processor; its architecture if Linux does not tell."""
    return _facts().get("model name") or platform.machine()


def is_amd_with_avx2() -> bool:
    """Returns whether it is a processor of AMD that has AVX2; False if Linux does not tell."""
    facts = _facts()
    return facts.get("vendor_id") == "AuthenticAMD" and "avx2" in facts.get("flags", "").split()


def _facts() -> dict[str, str]:
    """Returns what /proc/cpuinfo says of the first processor."""
    try:
        with open(CPUINFO, encoding="utf-8") as file:
            lines = list(takewhile(str.strip, file))  # an empty line ends each processor
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}
