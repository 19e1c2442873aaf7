"""Worker processes: what they compute, and that they are mended when they die or hang."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from tests.serving.engines import DIES, FAILS, HANGS, REFUSES, ReversingSpec
from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding.engine import Search, Sentence
from transformer_mt.serving.batching import Limits, Queue, Ticket, WorkerLost
from transformer_mt.serving.workers import Workers
from transformer_mt.utils.errors import UserError

SETTINGS = DecodingConfig()


@contextmanager
def working(spec=None, hang=5.0):
    before = set(multiprocessing.active_children())
    spec = spec or ReversingSpec()
    queue = Queue(Limits(), 1000, spec.threads)
    workers = Workers("reversing", spec, queue, hang)
    workers.processes = lambda: set(multiprocessing.active_children()) - before
    try:
        workers.start()
        yield queue, workers
    finally:
        workers.close()


def ask(queue: Queue, *sentences) -> list:
    """What each sentence gets: its output, or the error."""
    works = [Search([Sentence(list(ids))], SETTINGS) for ids in sentences]
    answers = []
    for place in queue.put(Ticket(), works):
        try:
            ((hypothesis,),) = place.result(20)
            answers.append(hypothesis.ids)
        except Exception as error:
            answers.append(error)
    return answers


@pytest.fixture(scope="module")
def shared():
    with working(ReversingSpec(seconds=0.1), hang=1.0) as made:
        yield made


def test_a_sentence_that_kills_its_process_takes_no_other_with_it(shared):
    queue, workers = shared
    first, poison, last = ask(queue, [1, 2], [DIES], [3, 4])
    assert (first, last) == ([2, 1], [4, 3])
    assert isinstance(poison, WorkerLost) and "has died (exit code 9)" in str(poison)
    assert workers.crashes == 2  # together with others, and alone


def test_an_error_of_the_engine_reaches_the_sentence_that_it_belongs_to(shared):
    queue, workers = shared
    crashes = workers.crashes
    first, refused, failed = ask(queue, [1, 2], [REFUSES], [FAILS])
    assert first == [2, 1]
    assert (type(refused), str(refused)) == (UserError, "this sentence is refused")
    assert "ZeroDivisionError: a mistake of the engine" in str(failed)
    assert workers.crashes == crashes


def test_a_process_that_hangs_or_is_killed_is_started_again(shared):
    queue, workers = shared
    (answer,) = ask(queue, [HANGS])
    assert "did not end within" in str(answer)
    assert ask(queue, [1, 2]) == [[2, 1]]
    (process,) = workers.processes()
    threading.Timer(0.05, os.kill, (process.pid, signal.SIGKILL)).start()
    assert ask(queue, [1, 2], [3, 4]) == [[2, 1], [4, 3]]


def test_processes_compute_side_by_side_and_closing_waits_for_none():
    with working(ReversingSpec(threads=2)) as (queue, workers):
        assert ask(queue, [1, 2], [3, 4, 5], []) == [[2, 1], [5, 4, 3], []]
        ticket = Ticket()
        works = [Search([Sentence([HANGS])], SETTINGS)]
        places = queue.put(ticket, works)
        while queue.waiting:
            time.sleep(0.01)
        assert ask(queue, [1, 2]) == [[2, 1]]  # by the other one
        places += queue.put(ticket, works * 2)
        workers.close()
        for place in places:
            with pytest.raises(WorkerLost):
                place.result(20)
        assert not workers.processes()


def test_a_model_that_can_not_be_loaded_is_reported_at_once(tmp_path):
    broken = tmp_path / "broken"
    broken.touch()
    with (
        pytest.raises(UserError, match="damaged"),
        working(ReversingSpec(threads=2, broken=str(broken))),
    ):
        pass


def test_a_model_that_can_not_be_loaded_again_is_tried_until_it_can(tmp_path):
    broken = tmp_path / "broken"
    with working(ReversingSpec(broken=str(broken))) as (queue, workers):
        broken.touch()
        (process,) = workers.processes()
        process.kill()
        while workers.is_ready:
            time.sleep(0.01)
        # The next sentence waits for a process.
        threading.Timer(0.3, broken.unlink).start()
        assert ask(queue, [1, 2]) == [[2, 1]]


def test_a_process_that_finds_other_weights_is_not_started_again(tmp_path):
    weights = tmp_path / "weights"
    weights.write_text("first")
    with working(ReversingSpec(weights=str(weights))) as (queue, workers):
        weights.write_text("second")
        assert ask(queue, [1, 2]) == [[2, 1]]  # by the process that has the first
        (process,) = workers.processes()
        process.kill()
        while workers.is_ready:
            time.sleep(0.01)
        (answer,) = ask(queue, [1, 2])
        assert isinstance(answer, WorkerLost) and "other weights" in str(answer)
