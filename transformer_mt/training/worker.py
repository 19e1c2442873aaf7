"""A training process, as Paddle's launcher starts it: worker.py JOB."""

import sys
from pathlib import Path

from transformer_mt import signals
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.training.launch import work

if __name__ == "__main__":
    # After the import, for Paddle puts a handler of its own in place.
    signals.install()
    try:
        work(Path(sys.argv[1]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Interrupted as stop:
        sys.exit(stop.exit_code)
