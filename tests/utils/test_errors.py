"""What is said of errors."""

import errno
from importlib import import_module

import pytest

from transformer_mt.utils.errors import describe, is_lost_connection

# As gloo says it, through Paddle.
LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:2811"


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError(LOST), True),
        (ValueError(f"(External) {LOST} (at /paddle/paddle/fluid/x.cc:1)"), True),
        (RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out after 1800 s"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "runs/igloo/model"), False),
        (RuntimeError("/home/gloo/texts/train.en is damaged"), False),
        (ValueError("gloo"), False),
    ],
)  # fmt: skip
def test_a_lost_connection_is_known_by_where_it_comes_from(error, is_lost):
    assert is_lost_connection(error) == is_lost
    assert ("another of the training processes has ended" in describe(error)) == is_lost


def test_a_missing_package_is_named():
    """As in an environment without Paddle, where only some commands work."""
    with pytest.raises(ModuleNotFoundError) as caught:
        import_module("a_package_that_does_not_exist.part")
    message = describe(caught.value)
    assert message.startswith("the package a_package_that_does_not_exist is needed, and is not")
    assert "scripts/setup.sh" in message and "should not happen" not in message
    # Those of an extra are installed with it.
    for name, extra in (("uvicorn.protocols", "serve"), ("matplotlib", "report")):
        message = describe(ModuleNotFoundError("no module", name=name))
        assert f"pip install 'transformer-mt[{extra}]'" in message
    # A module of this package that is missing is an error of the program.
    own = ModuleNotFoundError("no such module", name="transformer_mt.nowhere")
    assert "should not happen" in describe(own)
