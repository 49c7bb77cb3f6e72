"""Two runs pause and resume in the order of virtual time; exactly one runs at any time."""

from datetime import datetime, timedelta, timezone

import pytest

from journeyman_simulator.clock import VirtualClock
from journeyman_simulator.faults.cooperative_scheduler import CooperativeScheduler
from journeyman_simulator.world import World

START = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)


class RunLog:
    """Records in order what runs do: each writes an entry, pauses so many times, and writes again."""

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


def test_other_runs_continue_while_one_is_paused():
    """The second run starts and ends while the first is paused."""
    diary = RunLog()
    diary.run("a", 5)
    diary.run("b")
    diary.world.run_for(timedelta(seconds=10))
    assert diary.lines == [(0, "a begins"), (0, "b begins"), (5, "a goes on")]
    assert diary.scheduler.paused == 0


def test_of_runs_due_at_the_same_time_the_first_started_resumes_first():
    """The run that paused first does not resume first."""
    diary = RunLog()
    diary.run("a", 2, 3)
    diary.run("b", 5)
    diary.world.run_for(timedelta(seconds=10))
    assert diary.lines[2:] == [(2, "a goes on"), (5, "a goes on"), (5, "b goes on")]


def test_resume_all_ignores_the_times_of_paused_runs():
    """It resumes runs that pause again, too."""
    diary = RunLog()
    diary.run("a", 60, 60)
    diary.run("b", 1)
    diary.scheduler.release()
    assert [what for _, what in diary.lines[2:]] == ["a goes on", "a goes on", "b goes on"]
    assert (diary.scheduler.paused, diary.scheduler.due(), diary.clock.now()) == (0, None, START)


def test_a_resumed_run_raises_where_it_was_resumed():
    """The simulation reports an error of another thread."""
    diary = RunLog()

    def work():
        diary.scheduler.pause(START)
        raise KeyError("lost")

    diary.scheduler.start(work)
    with pytest.raises(KeyError, match="lost"):
        diary.scheduler.act()


def test_a_run_that_needs_no_thread_cannot_pause():
    """It runs as a plain call in the simulation's thread."""
    scheduler = CooperativeScheduler(VirtualClock(START))
    done = []
    scheduler.start(lambda: done.append(1), can_pause=False)
    with pytest.raises(RuntimeError, match="can pause"):
        scheduler.start(lambda: scheduler.pause(START), can_pause=False)
    assert done == [1]
