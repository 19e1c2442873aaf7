"""A training process, as Paddle's launcher starts it: worker.py JOB."""

import os
import sys
import traceback
from pathlib import Path

from transformer_mt import signals
from transformer_mt.training.launcher import LAUNCHER

if __name__ == "__main__":
    # Before the imports, which take seconds.
    signals.end_with_parent(int(os.environ[LAUNCHER]))

from transformer_mt.errors import Interrupted, describe
from transformer_mt.training.launch import ERROR, work

if __name__ == "__main__":
    # After the import, for Paddle puts a handler of its own in place.
    signals.install()
    job = Path(sys.argv[1])
    try:
        work(job)
    except Interrupted as stop:
        sys.exit(stop.exit_code)
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        # The parent says it, and the first has the reason. That another process is gone is none.
        message = job.with_name(ERROR)
        if "gloo" not in str(error) and not message.exists():
            message.write_text(describe(error))
        sys.exit(1)
