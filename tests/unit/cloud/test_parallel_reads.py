"""`cloud.parallel_reads`: answers in the order of the keys, read at once or one after another."""

import threading
from contextvars import ContextVar

import pytest

from journeyman.cloud.parallel_reads import read_each

CALLER = ContextVar("CALLER", default="")


def test_parallel_reads_are_under_way_at_once_in_the_callers_context():
    """Each waits for the other one; the context has the end of the run."""
    both = threading.Barrier(2, timeout=10)
    CALLER.set("run-1")

    def read(key):
        both.wait()
        return key.upper(), CALLER.get()

    assert list(read_each(read, ["b", "a"], in_parallel=True).items()) == [("b", ("B", "run-1")), ("a", ("A", "run-1"))]


@pytest.mark.parametrize(
    ("keys", "in_parallel"), [([], True), (["a"], True), ([], False), (["a"], False), (["b", "a", "c"], False)]
)
def test_reads_stay_in_the_callers_thread_where_nothing_is_gained(keys, in_parallel):
    """A simulation asks for it, and one read needs no thread."""
    read = read_each(lambda key: (key, threading.current_thread()), keys, in_parallel=in_parallel)
    assert list(read.items()) == [(key, (key, threading.current_thread())) for key in keys]


@pytest.mark.parametrize("in_parallel", [True, False])
def test_error_of_the_first_key_is_raised(in_parallel):
    def read(key):
        raise ValueError(key)

    with pytest.raises(ValueError, match=r"^b$"):
        read_each(read, ["b", "a"], in_parallel=in_parallel)
