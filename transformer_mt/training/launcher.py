"""Paddle's launcher, as this package starts it: it ends with the process that started it."""

import runpy

from transformer_mt import signals

if __name__ == "__main__":
    signals.end_with_parent()
    runpy.run_module("paddle.distributed.launch", run_name="__main__", alter_sys=True)
