import pytest

from tests.small_trainers import make_trainer, run_in, subwords  # noqa: F401


@pytest.fixture(autouse=True)
def no_report(monkeypatch):
    """Its charts take most of the time of so short a run; they have their own tests."""
    monkeypatch.setattr("transformer_mt.reports.run.write_report", lambda *_: None)
