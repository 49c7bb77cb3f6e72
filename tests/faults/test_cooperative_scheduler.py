"""Two runs at once: exactly one goes on at any time, and who is next is decided by virtual time alone."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.faults.cooperative_scheduler import CooperativeScheduler
from journeyman_simulator.world import World

START = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)


class Diary:
    """What runs do, in order: each writes, is paused for each of its pauses, and writes again."""

    def __init__(self):
        self.clock = VirtualClock(START)
        self.scheduler = CooperativeScheduler(self.clock)
        self.world = World(self.clock, [self.scheduler])
        self.lines = []

    def note(self, what):
        self.lines.append((int((self.clock.now() - START).total_seconds()), what))

    def run(self, name, *pauses):
        def work():
            self.note(f"{name} begins")
            for seconds in pauses:
                self.scheduler.pause(self.clock.now() + timedelta(seconds=seconds))
                self.note(f"{name} goes on")

        self.scheduler.start(work)


def test_a_parked_run_lets_others_go_on_and_goes_on_when_its_time_has_come():
    """While the first is paused the second begins and ends; the first goes on at its second."""
    diary = Diary()
    diary.run("a", 5)
    diary.run("b")
    diary.world.run_for(timedelta(seconds=10))
    assert diary.lines == [(0, "a begins"), (0, "b begins"), (5, "a goes on")]
    assert diary.scheduler.paused == 0


def test_of_runs_due_at_one_moment_the_one_that_began_first_goes_on_first():
    """Ties are broken by the order of beginning, not by who parked first."""
    diary = Diary()
    diary.run("a", 2, 3)
    diary.run("b", 5)
    diary.world.run_for(timedelta(seconds=10))
    assert diary.lines[2:] == [(2, "a goes on"), (5, "a goes on"), (5, "b goes on")]


def test_released_runs_go_on_at_once_whatever_their_time():
    """Also those that park once more on their way out."""
    diary = Diary()
    diary.run("a", 60, 60)
    diary.run("b", 1)
    diary.scheduler.release()
    assert [what for _, what in diary.lines[2:]] == ["a goes on", "a goes on", "b goes on"]
    assert (diary.scheduler.paused, diary.scheduler.due(), diary.clock.now()) == (0, None, START)


def test_what_a_run_raises_is_raised_where_it_was_let_go_on():
    """A bug of the simulation does not vanish in a thread."""
    diary = Diary()

    def work():
        diary.scheduler.pause(START)
        raise KeyError("lost")

    diary.scheduler.start(work)
    with pytest.raises(KeyError, match="lost"):
        diary.scheduler.act()


def test_without_threads_a_run_is_a_call_and_may_not_park():
    """The fast way, for scenarios in which nobody is paused."""
    scheduler = CooperativeScheduler(VirtualClock(START), threads=False)
    done = []
    scheduler.start(lambda: done.append(1))
    with pytest.raises(RuntimeError, match="can park"):
        scheduler.start(lambda: scheduler.pause(START))
    assert done == [1]
