"""Configs as text, for these tests."""

import pytest

from transformer_mt.config import file as config_file
from transformer_mt.utils.errors import UsageError


@pytest.fixture
def load(tmp_path):
    """A function that loads a config given as text (or bytes), with overrides."""

    def load_text(content, *overrides):
        path = tmp_path / "config.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return config_file.load(path, list(overrides))

    return load_text


@pytest.fixture
def problems(load, tmp_path):
    """A function that gives the lines of the error, the first without the file's name."""

    def problems_of(content, *overrides):
        with pytest.raises(UsageError) as caught:
            load(content, *overrides)
        assert caught.value.exit_code == 2
        first, *rest = str(caught.value).split("\n")
        assert first.startswith(str(tmp_path / "config.yaml"))
        return [
            first.removeprefix(str(tmp_path / "config.yaml")),
            *(line.removeprefix("  ") for line in rest),
        ]

    return problems_of
