"""Several processes for one training run, started by Paddle's launcher.

The parent has prepared everything; each worker reads what it needs, joins the others and trains.
The first worker writes to the parent's terminal as if it were the parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import paddle

from transformer_mt import device as devices
from transformer_mt import signals
from transformer_mt.config import Config
from transformer_mt.data.prepare import PreparedData
from transformer_mt.errors import Interrupted, UserError
from transformer_mt.model_directory import ModelDirectory
from transformer_mt.training.launcher import ERROR, PARENT
from transformer_mt.training.processes import Processes
from transformer_mt.training.trainer import Trainer

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
    with tempfile.TemporaryDirectory(prefix="transformer_mt-") as folder:
        job = Path(folder) / "job.pickle"
        if data.dev_split is not None:
            _ = data.dev_split.text  # read once, and handed on
        job.write_bytes(pickle.dumps((config, data, directory.path, device, resumed)))
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "transformer_mt.training.launcher"),
                *("--nproc_per_node", str(processes)),
                *("--log_dir", f"{folder}/log"),
                *(str(Path(__file__).with_name("worker.py")), str(job)),
            ],
            # What the launcher says of itself is kept for the case that it fails.
            stdout=open(f"{folder}/launcher.log", "wb"),  # noqa: SIM115 (the child's)
            stderr=subprocess.STDOUT,
            # To CUDA, "all" names no GPU; anything else the launcher takes for a list of GPUs.
            env=os.environ
            | ({"CUDA_VISIBLE_DEVICES": "all"} if device == "cpu" else {})
            | {OUTPUT: f"/proc/{os.getpid()}/fd/", PARENT: str(os.getpid())},
            # Ctrl-C reaches the launcher through us alone, so that it is told once.
            start_new_session=True,
        )
        try:
            code = launcher.wait()
        except Interrupted as stop:
            launcher.send_signal(signal.SIGTERM)
            with signals.held_back():
                launcher.wait()
            if (Path(folder) / ERROR).exists():  # saving has failed
                raise UserError(_failure(Path(folder))) from None
            raise stop from None
        finally:
            _go_on_after_the_workers()
        if code != 0:
            raise UserError(_failure(Path(folder)))


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
    tails = [_without_noise(log.read_text(errors="replace"))[-500:] for log in logs]
    return "\n".join(
        [
            "a training process was killed or stopped. If nobody did that, memory ran out: lower "
            "training.device_tokens",
            *filter(None, tails),
        ]
    )


def _without_noise(said: str) -> str:
    """What a process has said, without what Paddle's own code reports of flags and sockets."""
    noise = re.compile(r"[IWEF]\d{4} |FLAGS\(|=====")
    return "\n".join(line for line in said.split("\n") if line and not noise.match(line))


def work(job: Path) -> None:
    """What a worker does."""
    config, data, model_dir, device, resumed = pickle.loads(job.read_bytes())
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
