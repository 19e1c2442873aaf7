"""What all tests share: the real corpora where they are, and reproducible random examples."""

from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

# The same examples in every run, and no example fails because the machine is busy.
settings.register_profile("reproducible", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("reproducible")


def pytest_addoption(parser):
    parser.addoption(
        "--all", action="store_true", help="the large attacks too, which take about an hour"
    )


def pytest_collection_modifyitems(items):
    """Whole runs come first: the files that take longest must not be the last ones to begin."""
    items.sort(key=lambda item: "end_to_end" not in item.path.parts)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora, which are not the project's own and not shipped with it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(
            f"needs real corpora in {SHARED_DATA.relative_to(ROOT.parent)} beside the project"
        )
    return SHARED_DATA
