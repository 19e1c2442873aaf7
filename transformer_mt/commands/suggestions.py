"""What the user may have meant by an unknown option or command."""

import argparse
import difflib
import re
from collections.abc import Iterable
from itertools import takewhile


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that begin with a name, or else the one whose spelling is nearest. The list
    is empty if none is near. Dashes in front are not compared, and `_` counts as `-`."""
    spelled = {re.sub("_", "-", one.lstrip("-")): one for one in known}
    name = re.sub("_", "-", name.lstrip("-").lower())
    longer = [one for one in spelled if name and one.startswith(name)]
    return [spelled[one] for one in longer or difflib.get_close_matches(name, spelled, n=1)]


def did_you_mean(names: list[str]) -> str:
    """The end of a message about an unknown name. It is empty if there are no names."""
    return f"; did you mean {' or '.join(names)}?" if names else ""


def require_known_options(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
    """Ends the program, as the parser does, if there are unknown options among the arguments. The
    message names all of them, with what may have been meant.

    The parser itself would first complain of other things, such as an option that is missing
    because its name is misspelled.
    """
    known = parser._option_string_actions
    problems = []
    for text in takewhile(lambda text: text != "--", arguments):
        flag = text.partition("=")[0]
        # argparse takes numbers and texts with spaces for values.
        is_value = not text.startswith("-") or text == "-" or re.fullmatch(r"-[\d.]+|.* .*", text)
        if not is_value and flag not in known:
            has_keys = any(action.dest == "overrides" for action in parser._actions)
            meant = (_keys(flag) if has_keys else []) or nearest(flag, known)
            problems.append(f"{flag}: unknown option{did_you_mean(meant)}")
    if problems:
        parser.error("\n  ".join(problems))


def _keys(flag: str) -> list[str]:
    """The keys of a config that a flag may stand for, as they are written on the command line."""
    from transformer_mt.config.problems import known_keys  # imports the schema

    return [f"{key}=..." for key in known_keys(flag.lstrip("-").replace("-", "_"))]
