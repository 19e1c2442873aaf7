"""What the tests of the scripts share."""

import pytest

from tests.scripts.fake_project import Project


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)
