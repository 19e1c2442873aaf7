"""The state of training: what is saved comes back."""

import pytest

from transformer_mt.training.checkpoint import State
from transformer_mt.training.progress import Meter, Progress
from transformer_mt.utils.errors import UserError
from transformer_mt.utils.folders import write_checksums

PROGRESS = Progress(
    *((2, 300), 20, 1, 3, 2, 1, 15, [([9.5, 40.0, -1.0], 10), ([9.0, 41.0, -1.5], 20)], 1),
    meter=Meter(1.5, 1.25, 0.5, 100, 2.0, 300, 20),
    losses=[(5.0, 4.5)],
    loss_since=7.0,
    tokens_since=30,
    seconds=12.5,
)


@pytest.fixture
def checkpoint(tmp_path):
    for step in (10, 20):
        (tmp_path / f"step_{step}").mkdir()
    return tmp_path / "step_20"


def written(checkpoint, text):
    (checkpoint / "state.json").write_text(text)
    write_checksums(checkpoint)
    return checkpoint


@pytest.mark.parametrize("more", [{}, {"stopped": True}, {"average_of": ["step_10", "step_20"]}])
def test_what_is_saved_comes_back(checkpoint, more):
    state = State(PROGRESS, {"scale": [1024.0], "incr_count": 3}, "text", **more)
    state.save(checkpoint)
    write_checksums(checkpoint)
    assert State.restore(checkpoint) == state


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", "{}", '{"progress": 3}', '{"progress": {"plan": 3, "best": [], "meter": {}}}'],
)
def test_what_is_no_state_is_refused(checkpoint, text):
    with pytest.raises(UserError, match=r"step_20/state\.json: it is no state of training"):
        State.restore(written(checkpoint, text))
