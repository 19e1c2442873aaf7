"""Several processes for one training run, started by Paddle's launcher.

The parent has prepared everything; each worker reads what it needs, joins the others and trains.
The first worker writes to the parent's terminal as if it were the parent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import paddle

from transformer_mt.config.schema import Config
from transformer_mt.data.prepare import PreparedData
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.runtime import device as devices
from transformer_mt.runtime import signals
from transformer_mt.runtime.errors import Interrupted, UserError, is_lost_connection
from transformer_mt.training.paddle_launcher import ERROR, PARENT
from transformer_mt.training.processes import Processes
from transformer_mt.training.trainer import Trainer

# The folder in the model directory that parent and workers share; what is in it is of one run.
WORKERS = ".workers"
# Where the first worker's output goes, as the parent's /proc entries.
OUTPUT = "TRANSFORMER_MT_OUTPUT"


def run_workers(
    config: Config,
    data: PreparedData,
    directory: ModelDirectory,
    device: str,
    processes: int,
    resumed: Path | None,
) -> None:
    """Trains with several processes on this machine, and waits for them.

    Args:
        resumed: the checkpoint to go on from.

    Raises:
        UserError: a worker failed, and why.
        Interrupted: this process was asked to stop, and the workers have saved and stopped.
    """
    with _work_folder(directory) as folder:
        job = folder / "job.pickle"
        if data.dev_split is not None:
            _ = data.dev_split.text  # read once, and handed on
        content = pickle.dumps((config, data, directory.path, device, resumed))
        job.write_bytes(content)
        command = [
            *(sys.executable, "-m", "transformer_mt.training.paddle_launcher"),
            *("--nproc_per_node", str(processes)),
            *("--log_dir", f"{folder}/log"),
            *(str(Path(__file__).with_name("worker.py")), str(job)),
            hashlib.sha256(content).hexdigest(),
        ]
        launcher = None
        try:
            with signals.blocked(), open(folder / "launcher.log", "wb") as log:
                launcher = subprocess.Popen(
                    command,
                    # What the launcher says of itself is kept for the case that it fails.
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # To CUDA, "all" names no GPU; anything else the launcher takes for a list of
                    # GPUs.
                    env=os.environ
                    | ({"CUDA_VISIBLE_DEVICES": "all"} if device == "cpu" else {})
                    | {OUTPUT: f"/proc/{os.getpid()}/fd/", PARENT: str(os.getpid())},
                    # Ctrl-C reaches the launcher through us alone, so that it is told once.
                    start_new_session=True,
                )
            code = launcher.wait()
        except Interrupted as stop:
            if launcher is not None:
                launcher.send_signal(signal.SIGTERM)
                with signals.held_back():
                    launcher.wait()
            if (folder / ERROR).exists():  # saving has failed
                raise UserError(_failure(folder)) from None
            raise stop from None
        finally:
            _go_on_after_the_workers()
        if code != 0:
            raise UserError(_failure(folder))


@contextlib.contextmanager
def _work_folder(directory: ModelDirectory) -> Iterator[Path]:
    """A new folder, for this user alone, that is gone when the block ends."""
    folder = directory.path.resolve() / WORKERS
    clear_work_folder(directory)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise UserError(f"{folder}: can't be made: {error.strerror}") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_work_folder(directory: ModelDirectory) -> None:
    """Deletes what a run that was killed, or whoever else, has left where workers share files.

    Raises:
        UserError: it can't be deleted.
    """
    folder = directory.path / WORKERS
    try:
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: can't be deleted: {error.strerror}. Delete it") from None


def _go_on_after_the_workers() -> None:
    """Where our output goes into a file, the first worker has written on from its own place in it;
    from ours, we would write over that."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):  # not a file; closed
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                os.lseek(stream.fileno(), 0, os.SEEK_END)


def _failure(folder: Path) -> str:
    """What the first worker to fail has said; one that was killed has said nothing."""
    if (folder / ERROR).exists():
        return (folder / ERROR).read_text()
    logs = sorted(folder.glob("log/workerlog.*"))
    if not logs:
        said = (folder / "launcher.log").read_text(errors="replace").strip()
        return f"Paddle's launcher could not start the training processes:\n{said[-1000:]}"
    tails = [_of_use(log.read_text(errors="replace")) for log in logs]
    return "\n".join(
        [
            "a training process was killed or stopped. If nobody did that, memory ran out: lower "
            "training.device_tokens",
            *filter(None, tails),
        ]
    )


def _of_use(said: str) -> str:
    """The end of what a process has said, without what Paddle's own code reports of flags and
    sockets; nothing, if it ended because another one was gone."""
    if is_lost_connection(RuntimeError(said)):
        return ""
    noise = re.compile(r"[IWEF]\d{4} |FLAGS\(|=====")
    return "\n".join(line for line in said.split("\n") if line and not noise.match(line))[-500:]


def work(job: Path, digest: str) -> None:
    """What a worker does.

    Args:
        digest: the SHA-256 of the job, for only what this run has written is unpickled.
    """
    content = job.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise UserError(f"{job}: not what this run has written. Start it again")
    config, data, model_dir, device, resumed = pickle.loads(content)
    devices.use(own_device(device))
    processes = Processes.join()
    if processes.is_first:
        _write_to_parent()
    directory = ModelDirectory(model_dir)
    trainer = Trainer(config, data, processes)
    trainer.start(directory, resumed)
    trainer.run(directory)


def _write_to_parent() -> None:
    for descriptor in (1, 2):
        try:
            parents = os.open(f"{os.environ[OUTPUT]}{descriptor}", os.O_WRONLY | os.O_APPEND)
        except OSError:
            continue  # a socket can't be opened again; the launcher's log has it
        os.dup2(parents, descriptor)


# --------------------------------------------------------------------------- several machines


def is_launched() -> bool:
    """Whether Paddle's launcher has started this process as one of several."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1


def own_device(device: str | None) -> str | None:
    """The device of a process that the launcher has started; of several GPUs, each has its own."""
    if device == "cpu" or not paddle.is_compiled_with_cuda():
        return device
    return f"gpu:{paddle.distributed.ParallelEnv().device_id}"


def train_together(trainer: Trainer, directory: ModelDirectory) -> None:
    """Trains as one of the processes that Paddle's launcher has started, on several machines. The
    first has made the directory ready.

    Raises:
        UserError: not all have the same text, or see the same directory.
    """
    processes = trainer.processes
    if len(set(processes.gather(trainer.data.key))) > 1:
        raise UserError(
            "the machines don't have the same training text (data.root), or its alignments "
            "(guided_attention.alignments)"
        )
    saved = directory.saved_checkpoints()
    if len(set(processes.gather(saved[-1].name if saved else None))) > 1:
        raise UserError(
            f"model_dir: {directory.path}: the machines don't see the same checkpoints in it. It "
            "must be on a file system that they share"
        )
    if not processes.is_first:
        trainer.start(directory, saved[-1] if saved else None)
    trainer.run(directory)
