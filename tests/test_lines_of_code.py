"""The count of the lines of code, which each run of the tests prints. No limit is asserted."""

from tests.lines_of_code import lines_of_code

SOURCE = '''"""A docstring
of two lines."""

# a comment
import os  # another


def function(
    value,
):
    """Another docstring."""
    text = """two
lines"""
    return text, value


class Section:
    """A class."""

    key = 1
    """What the key is,
    in two lines."""
'''


def test_what_counts():
    assert lines_of_code(SOURCE) == 1 + 3 + 3 + 2
    assert lines_of_code("") == 0
