"""The queue of the service: what is in a batch, who comes first, and what is refused."""

import threading
import time

import pytest

from transformer_mt.config.decoding import DecodingConfig
from transformer_mt.decoding.engine import Search, Sentence
from transformer_mt.serving.batching import (
    Limits,
    Overloaded,
    Queue,
    Ticket,
    WorkerLost,
)
from transformer_mt.utils.errors import UsageError

SETTINGS = DecodingConfig()


def search(*ids, settings=SETTINGS, attention=False) -> Search:
    return Search([Sentence(list(ids))], settings, attention)


def sources(batch) -> list[list[int]]:
    return [waiting.work.sentences[0].source for waiting in batch]


def put(queue: Queue, *works) -> Ticket:
    ticket = Ticket()
    ticket.places = queue.put(ticket, list(works))
    return ticket


def test_requests_take_turns():
    queue = Queue(Limits(max_batch=4), 1000)
    put(queue, *(search(1, number) for number in range(6)))
    put(queue, search(2), search(2))
    put(queue, search(3))
    assert sources(queue.take()) == [[1, 0], [2], [3], [1, 1]]
    put(queue, search(4))
    # Who was there before comes first, and who has just come is not last.
    assert sources(queue.take()) == [[2], [1, 2], [4], [1, 3]]


def test_only_equal_settings_share_a_batch_and_nobody_is_overtaken_for_long():
    queue = Queue(Limits(), 1000)
    others = DecodingConfig(beam_size=7), DecodingConfig(n_best=2)
    put(queue, search(1))
    put(queue, search(2, settings=others[0]))
    put(queue, search(3, settings=SETTINGS.model_copy()))  # equal, but not the same object
    put(queue, search(4, settings=others[1]))
    put(queue, search(5, attention=True))
    batches = [sources(queue.take()) for _ in range(4)]
    assert batches == [[[1], [3]], [[2]], [[4]], [[5]]]


def test_the_size_of_a_batch_counts_padding():
    queue = Queue(Limits(), 12)
    put(queue, search(1, 1))  # 3 with eos
    put(queue, search(2, 2, 2))  # two rows of 4
    put(queue, search(3))  # three rows of 4
    put(queue, search(4))
    put(queue, search(*[5] * 50))  # longer than a batch: alone
    assert sources(queue.take()) == [[1, 1], [2, 2, 2], [3]]
    assert sources(queue.take()) == [[4]]
    assert sources(queue.take()) == [[5] * 50]


def test_what_is_no_search_is_alone():
    queue = Queue(Limits(), 1000)
    put(queue, len)
    put(queue, search(1))
    assert [waiting.work for waiting in queue.take()] == [len]
    assert sources(queue.take()) == [[1]]


def test_workers_share_what_waits():
    queue = Queue(Limits(), 1000, workers=2)
    put(queue, *(search(number) for number in range(10)))
    assert [len(queue.take()) for _ in range(2)] == [5, 5]


def test_a_full_queue_refuses():
    queue = Queue(Limits(max_waiting=5, max_batch=2), 1000)
    put(queue, *[search(1)] * 20)  # larger than the queue, but nobody else is there
    with pytest.raises(Overloaded, match="20 sentences are waiting"):
        put(queue, search(2))


def test_what_is_cancelled_is_dropped_and_makes_room():
    queue = Queue(Limits(max_waiting=5), 1000)
    gone = put(queue, *[search(1)] * 5)
    gone.cancel()
    kept = put(queue, search(2))
    assert sources(queue.take()) == [[2]]
    assert queue.waiting == 0
    with pytest.raises(WorkerLost, match="given up"):
        gone.places[0].result()
    with pytest.raises(WorkerLost, match="given up"):
        queue.put(gone, [search(1)])
    assert not kept.places[0].done()


def test_too_many_subwords_are_refused_before_anything_waits():
    queue = Queue(Limits(max_subwords=5), 1000)
    with pytest.raises(UsageError, match="6 subwords; a request may have 5"):
        list(queue.run(Ticket(), iter([search(1, 2, 3), None, search(4, 5, 6)])))
    assert queue.waiting == 0


def test_the_runner_gives_each_work_its_result_in_order():
    queue, got = Queue(Limits(), 1000), []
    works = iter([search(1), None, search(2), search(3)])
    thread = threading.Thread(target=lambda: got.extend(queue.run(Ticket(), works)))
    thread.start()
    while queue.waiting < 3:
        time.sleep(0.001)
    batch = queue.take()
    for waiting, result in zip(batch, ["one", "two", "three"], strict=True):
        waiting.future.set_result(result)
    thread.join()
    assert got == ["one", None, "two", "three"]


def test_works_that_come_again_are_alone_and_first():
    queue = Queue(Limits(), 1000)
    put(queue, search(1), search(2))
    batch = queue.take()
    put(queue, search(3), search(4))
    queue.again(batch)
    queue.done(batch)
    assert [sources(queue.take()) for _ in range(3)] == [[[2]], [[1]], [[3], [4]]]
    batch[0].ticket.cancel()
    queue.again(batch[:1])
    assert queue.waiting == 0 and batch[0].future.exception()


def test_closing_ends_all_waiting():
    queue = Queue(Limits(), 1000)
    ticket = put(queue, search(1))
    queue.close()
    with pytest.raises(WorkerLost, match="stopping"):
        ticket.places[0].result()
    with pytest.raises(WorkerLost):
        put(queue, search(1))
    assert queue.take() is None
