"""What can go wrong for a user, and the exit code of each.

Exit codes, the same for every verb: 0 done, 1 failed, 2 wrong config or arguments (a named file
that does not exist counts as that), 130 Ctrl-C, 143 SIGTERM.
"""


class UserError(Exception):
    """Something the user can mend; its text says what, where, and what to do. Exit code 1."""

    exit_code = 1


class UsageError(UserError):
    """The config or an argument is wrong; nothing was written. Exit code 2."""

    exit_code = 2


class Interrupted(BaseException):
    """The process was asked to stop. Exit code 128 + the signal's number: 130 or 143.

    It derives from BaseException, as KeyboardInterrupt does, so that no handler of ordinary errors
    swallows it.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number
