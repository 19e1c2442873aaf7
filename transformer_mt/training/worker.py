"""A training process, as Paddle's launcher starts it: worker.py JOB SHA256."""

import os
import sys
import traceback
from pathlib import Path

from transformer_mt.runtime import signals
from transformer_mt.runtime.errors import Interrupted, describe, is_lost_connection
from transformer_mt.training.paddle_launcher import ERROR, LAUNCHER


def main(job: Path, digest: str) -> int:
    """Trains as the job says; returns the exit code."""
    try:
        with signals.raised():
            from transformer_mt.training.workers import work

            work(job, digest)
        return 0
    except Interrupted as stop:
        return stop.exit_code
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        # The parent says it, and the first has the reason. That another process is gone is none.
        message = job.with_name(ERROR)
        if not is_lost_connection(error) and not message.exists():
            message.write_text(describe(error))
        return 1


if __name__ == "__main__":
    signals.end_with_parent(int(os.environ[LAUNCHER]))
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
