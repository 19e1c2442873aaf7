"""Paddle's launcher, started so that it ends with the process that started it; and the names that
the processes of a run share."""

import os
import runpy

from transformer_mt.utils import signals

# Environment variables: the number of the process that starts Paddle's launcher, the number of the
# launcher, and the folder of that process's open files in /proc, to which the first worker writes.
PARENT = "TRANSFORMER_MT_PARENT"
LAUNCHER = "TRANSFORMER_MT_LAUNCHER"
OUTPUT = "TRANSFORMER_MT_OUTPUT"
# The file beside the job in which a worker writes why it failed.
ERROR = "error.txt"

if __name__ == "__main__":
    signals.serve(int(os.environ[PARENT]))
    os.environ[LAUNCHER] = str(os.getpid())
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)
