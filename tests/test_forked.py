"""A forked process of the tests is what a fresh one is; and what needs a fresh one has it."""

import json
import os
import signal
import subprocess

import pytest

from tests.pretrained.random_models import SPECIFICATIONS, write_huggingface
from tests.support import (
    TIMEOUT,
    demo_pairs,
    make_config,
    make_model_directory,
    python,
    run,
    run_python,
)
from transformer_mt.cli import COMMANDS

# What a process finds. Sockets and pipes of others must not be open in it.
CODE = """
import json, os, resource, signal, sys
status = open("/proc/self/status").read().split()
found = {
    "argv": sys.argv,
    "path": sys.path[0],
    "name": __name__,
    "cwd": os.getcwd(),
    "env": dict(os.environ),
    "parent": os.getppid(),
    "leads": os.getsid(0) == os.getpid(),
    "limit": resource.getrlimit(resource.RLIMIT_FSIZE),
    "handlers": [str(signal.getsignal(number)) for number in (1, 2, 13, 15, 17)],
    "masks": [status[status.index(name) + 1] for name in ("SigBlk:", "SigIgn:")],
    "streams": [os.path.exists(f"/proc/self/fd/{number}") for number in range(3)],
    "stdin": sys.stdin.read(),
    "buffering": [stream.line_buffering for stream in (sys.stdout, sys.stderr)],
    "open": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],
}
print(json.dumps(found))
print("a message", file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize(
    "options",
    [{}, {"start_new_session": True, "file_size": 50_000, "env": os.environ | {"A": "b"}}],
)
def test_a_forked_process_finds_what_a_fresh_one_finds(tmp_path, options):
    found = []
    for is_fresh in (True, False):
        process = python(
            *("-c", CODE, "an argument", 2), is_fresh=is_fresh, cwd=tmp_path, **options,
            stdin=subprocess.PIPE,
        )  # fmt: skip
        output, messages = process.communicate("text\n", timeout=TIMEOUT)
        assert (process.returncode, messages) == (7, "a message\n")
        found.append(json.loads(output))
    assert found[0]["stdin"] == "text\n" and found[0]["parent"] == os.getpid()
    assert found[1] == found[0]


def test_a_forked_process_is_killed_by_a_signal_as_any_is():
    process = python("-c", "import time; print(1, flush=True); time.sleep(600)")
    assert process.stdout.readline() == "1\n" and process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT) == -signal.SIGTERM


def test_an_error_of_a_forked_process_is_told():
    process = python("-c", "raise ValueError('no')")
    output, messages = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, output) == (1, "")
    assert messages.startswith("Traceback") and messages.endswith("ValueError: no\n")


# ---- Fresh processes ----

HAS_PADDLE = ("-c", "import sys; print('paddle' in sys.modules)")


@pytest.mark.fresh
def test_a_test_marked_fresh_starts_fresh_processes():
    assert run_python(*HAS_PADDLE).stdout == "False\n"


def test_other_tests_fork_processes_with_all_too(pytestconfig):
    is_forked = not pytestconfig.getoption("--attack")
    assert run_python(*HAS_PADDLE).stdout == f"{is_forked}\n"


@pytest.mark.slow
@pytest.mark.fresh
def test_every_command_works_in_a_fresh_process(tmp_path):
    """Without what the other commands have imported; those of the README are run as it shows them
    in tests/docs/test_first_hour.py."""
    in_readme = {"new", "train", "translate", "serve", "evaluate", "report", "attention", "export"}
    model, source, target = "model", "model/dev/source", "model/dev/reference"
    directory = make_model_directory(tmp_path / model, demo_pairs(60), make_config(tmp_path))
    for name, lines in zip(("source", "reference"), zip(*demo_pairs(9), strict=True), strict=True):
        directory.write_lines(f"dev/{name}", lines)
    text = ("--source", source, "--target", target)
    write_huggingface(SPECIFICATIONS["plain"], tmp_path / "opus")
    jobs = {
        "augment": ("pairs", "--forward", model, "--source", source),
        "compare": (target, source, "--reference", target),
        "tune": (model, "--dry-run"),
        "score": (model, *text),
        "align": (model, *text),
        "average": (model, "--last", 2),
        "shortlist": (model, *text),
        "info": (model,),
        "import": ("opus", "imported"),
        "check-device": ("--device", "cpu"),
    }
    assert jobs.keys() | in_readme == COMMANDS.keys()
    for command, arguments in jobs.items():
        done = run(command, *arguments, cwd=tmp_path)
        assert done.returncode == 0, f"{command}: {done.stderr}"
