"""Paddle's launcher, as this package starts it: it ends with the process that started it."""

import os
import runpy

from transformer_mt.runtime import signals

# In the environment: the number of the process that starts the launcher, and the launcher's own.
PARENT = "TRANSFORMER_MT_PARENT"
LAUNCHER = "TRANSFORMER_MT_LAUNCHER"
# The file beside the job in which a worker says what went wrong.
ERROR = "error.txt"

if __name__ == "__main__":
    signals.serve(int(os.environ[PARENT]))
    os.environ[LAUNCHER] = str(os.getpid())
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)
