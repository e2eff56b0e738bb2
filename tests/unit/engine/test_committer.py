"""Every committer runs calls in order and stops at the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from driftq.engine.committer import Committer, InlineCommitter, ThreadCommitter


class Calls:
    """A committer, and what it reported. Posted callbacks run at once, on the thread that posts them."""

    def __init__(self, new: Callable[..., Committer]) -> None:
        self.results: list[Any] = []
        self.failures: list[BaseException] = []
        self.committer = new(lambda callback, *arguments: callback(*arguments), self.failures.append)


@pytest.fixture(params=[ThreadCommitter, InlineCommitter])
def calls(request):
    return Calls(request.param)


def test_calls_run_in_order_and_a_stop_finishes_them(calls):
    for number in range(100):
        calls.committer.call(lambda number=number: number, calls.results.append)
    calls.committer.stop()
    assert calls.results == list(range(100))
    assert not calls.failures


def test_a_call_that_raises_is_reported_and_has_no_result(calls):
    error = OSError("no disk")

    def fail() -> None:
        raise error

    calls.committer.call(lambda: 1, calls.results.append)
    calls.committer.call(fail, calls.results.append)
    calls.committer.stop()
    assert calls.results == [1]
    assert calls.failures == [error]


def test_nothing_runs_on_the_thread_after_a_failure():
    calls = Calls(ThreadCommitter)
    calls.committer.call(lambda: 1 / 0, calls.results.append)
    calls.committer.call(lambda: 2, calls.results.append)
    calls.committer.stop()
    assert calls.results == []
    assert [type(error) for error in calls.failures] == [ZeroDivisionError]


def test_a_thread_committer_leaves_the_calling_thread_free():
    calls = Calls(ThreadCommitter)
    release = threading.Event()
    calls.committer.call(lambda: release.wait(10), calls.results.append)
    assert calls.results == []
    release.set()
    calls.committer.stop()
    assert calls.results == [True]


def test_a_call_runs_inline_on_the_calling_thread_unless_another_one_is_under_way():
    calls = Calls(ThreadCommitter)
    release = threading.Event()
    calls.committer.call_inline(threading.current_thread, calls.results.append)
    assert calls.results == [threading.current_thread()]
    calls.committer.call(lambda: release.wait(10), calls.results.append)
    calls.committer.call_inline(threading.current_thread, calls.results.append)
    assert len(calls.results) == 1
    release.set()
    calls.committer.stop()
    assert calls.results[1] is True
    assert calls.results[2] is not threading.current_thread()


def test_nothing_runs_after_an_inline_failure(calls):
    calls.committer.call_inline(lambda: 1 / 0, calls.results.append)
    assert [type(error) for error in calls.failures] == [ZeroDivisionError]
    if isinstance(calls.committer, ThreadCommitter):
        calls.committer.call(lambda: 2, calls.results.append)
        calls.committer.call_inline(lambda: 3, calls.results.append)
    calls.committer.stop()
    assert calls.results == []
