"""What all tests share: the levels of the suite, the real corpora, and reproducible examples."""

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import ONLY_FRESH
from transformer_mt.model import operations
from transformer_mt.utils import console

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"

# The same examples in every run, and no example fails because the machine is busy.
settings.register_profile("reproducible", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("reproducible")


@pytest.fixture(autouse=True)
def no_warnings_counted():
    """Warnings of a kind are counted in a process, and a test is like a process of its own."""
    console._counts.clear()


@pytest.fixture(autouse=True)
def plain_operations():
    """Models compute with Paddle's own operations, unless a test or a run chooses others."""
    operations.use(operations.PLAIN)


@pytest.fixture(autouse=True)
def fresh_processes(request):
    """A test marked `fresh` starts no process of the program by forking one."""
    with pytest.MonkeyPatch.context() as patched:
        if request.node.get_closest_marker("fresh"):
            patched.setenv(ONLY_FRESH, "1")
        yield


def pytest_addoption(parser):
    parser.addoption(
        "--all",
        action="store_true",
        help="also the tests marked slow",
    )
    parser.addoption(
        "--attack",
        action="store_true",
        help="as --all, with the attacks of tests/attack at large, which take about an hour; and "
        "each process of the program is started afresh",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "fresh: about the start of processes, so none is forked")
    if config.getoption("--attack"):
        os.environ[ONLY_FRESH] = "1"


def pytest_collection_modifyitems(config, items):
    """Leaves the slow tests out; and whole runs come first, so that the files that take longest are
    not the last ones to begin."""
    if not wants_all(config):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in set(slow)]
    items.sort(key=lambda item: "end_to_end" not in item.path.parts)


def pytest_collection_finish():
    """Everything that has been imported stays. A garbage collection does not look at it again."""
    gc.freeze()


def wants_all(config) -> bool:
    return config.getoption("--all") or config.getoption("--attack")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora, which are not the project's own and not shipped with it."""
    if not SHARED_DATA.is_dir():
        pytest.skip(
            f"needs real corpora in {SHARED_DATA.relative_to(ROOT.parent)} beside the project"
        )
    return SHARED_DATA
