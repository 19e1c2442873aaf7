"""A training process, as Paddle's launcher starts it: worker.py JOB SHA256."""

import hashlib
import os
import pickle
import sys
import traceback
from pathlib import Path

from transformer_mt.training.paddle_launcher import ERROR, LAUNCHER, OUTPUT
from transformer_mt.utils import signals
from transformer_mt.utils.errors import Interrupted, UserError, describe, is_lost_connection


def main(job: Path, digest: str) -> int:
    """Trains as the job says; returns the exit code."""
    try:
        with signals.raised():
            work(job, digest)
        return 0
    except Interrupted as stop:
        return stop.exit_code
    except Exception as error:
        if os.environ.get("TRANSFORMER_MT_DEBUG"):
            traceback.print_exc()
        # The parent shows the message of the worker that failed first. Workers that fail because
        # another one has ended do not write theirs.
        message = job.with_name(ERROR)
        if not is_lost_connection(error) and not message.exists():
            message.write_text(describe(error), "utf-8", "backslashreplace")
        return 1


def work(job: Path, digest: str) -> None:
    """Reads the job that `workers.run_workers` has written, joins the other workers and trains.

    Args:
        digest: the SHA-256 of the job, so that only a file written by this run is unpickled.
    """
    from transformer_mt.training.folder import RunDirectory
    from transformer_mt.training.processes import Processes, own_device
    from transformer_mt.utils import device as devices

    content = job.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"{job}: this file was changed after the run wrote it. Start the run again")
    make_trainer, config, data, model_dir, device, resumed = pickle.loads(content)
    devices.use(own_device(device))
    processes = Processes.join()
    directory = RunDirectory(model_dir)
    if processes.is_first:
        _write_to_parent()
        directory.keep_terminal_log()
    trainer = make_trainer(config, data, processes)
    trainer.start(resumed)
    trainer.run(directory)


def _write_to_parent() -> None:
    """Redirects stdout and stderr of this process to those of the parent."""
    for descriptor in (1, 2):
        try:
            output = os.open(f"{os.environ[OUTPUT]}{descriptor}", os.O_WRONLY | os.O_APPEND)
        except OSError:
            continue  # a socket can't be opened again; the output stays in the launcher's log
        os.dup2(output, descriptor)


if __name__ == "__main__":
    signals.end_with_parent(int(os.environ[LAUNCHER]))
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
