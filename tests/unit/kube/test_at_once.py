"""Writes that wait for each other: nobody goes early, nobody waits for ever, nobody waits twice."""

import threading
import time
from typing import ClassVar

import pytest

from journeyman.core.api.objects import POD
from journeyman.errors import KubeUnavailableError
from journeyman.kube.at_once import Holding, StartLine
from journeyman.ports import Patch

PATCHES = tuple(Patch(name=name, namespace="default", body={"metadata": {"labels": {"a": name}}}) for name in "abc")


class Wire:
    """Takes what is sent, unless it is cut; the order of all that is sent is noted."""

    order: ClassVar[list[bytes]] = []

    def __init__(self):
        self.sent, self.is_cut = b"", False

    def send(self, data):
        if self.is_cut:
            raise BrokenPipeError
        self.sent += data
        self.order.append(data)


class HoldingWire(Holding, Wire):
    """As the connections to an API server are."""


class Sender(threading.Thread):
    """Sends a body piece by piece, and leaves."""

    def __init__(self, line, content, place=0, is_cut=False):
        super().__init__()
        self.line, self.body, self.wire, self.error = line, line.body(content, place), HoldingWire(), None
        self.is_cut = is_cut
        self.start()

    @property
    def sent(self):
        return self.wire.sent

    def run(self):
        try:
            for piece in self.body:
                self.wire.send(piece)
                self.wire.is_cut = self.is_cut
        except OSError as error:
            self.error = error
        self.line.leave()


def test_nobody_sends_the_last_byte_before_everybody_is_that_far():
    """However long the last one takes to come."""
    line = StartLine(3)
    early = [Sender(line, b"first"), Sender(line, b"second")]
    for sender in early:
        sender.join(0.1)
    assert [sender.sent for sender in early] == [b"firs", b"secon"]
    late = Sender(line, b"third")
    for sender in (*early, late):
        sender.join(5)
    assert [sender.sent for sender in (*early, late)] == [b"first", b"second", b"third"]


def test_they_set_out_in_their_order_whoever_came_first():
    """The nodes whose pods are tried last."""
    line, Wire.order[:] = StartLine(3), []
    senders = [Sender(line, content, place) for place, content in ((2, b"-c"), (0, b"-a"), (1, b"-b"))]
    for sender in senders:
        sender.join(5)
    assert Wire.order[-3:] == [b"a", b"b", b"c"]


def test_a_connection_that_breaks_breaks_no_other():
    """Its own request is told, by its own thread."""
    line = StartLine(3)
    senders = [Sender(line, b"one"), Sender(line, b"two", is_cut=True), Sender(line, b"six")]
    for sender in senders:
        sender.join(5)
    assert [sender.sent for sender in senders] == [b"one", b"tw", b"six"]
    assert [type(sender.error) for sender in senders] == [type(None), BrokenPipeError, type(None)]


def test_who_does_not_come_is_not_waited_for():
    """A request that failed before it was sent; and one that takes longer than anybody should wait."""
    line = StartLine(2)
    waiting = Sender(line, b"one")
    line.leave()
    waiting.join(1)
    assert waiting.sent == b"one"
    impatient = Sender(StartLine(2, patience_seconds=0.05), b"two")
    impatient.join(5)
    assert impatient.sent == b"two"


def test_a_second_try_waits_for_nobody():
    """The others are gone."""
    line = StartLine(1)
    body = line.body(b"again", 0)
    assert (len(body), b"".join(body)) == (5, b"again")
    began = time.monotonic()
    assert b"".join(body) == b"again"
    assert time.monotonic() < began + 1


def nothing():
    pass


def test_each_write_has_its_own_answer_and_its_own_second_try(script, store_for):
    """Those that are turned away come again, alone and whole."""
    script.say(429, {"kind": "Status", "code": 429}, Retry_After="0")
    script.say(429, {"kind": "Status", "code": 429}, Retry_After="0")
    script.say(200, {"metadata": {"name": "done"}})
    answers = store_for(script.url).patch_at_once(POD, PATCHES, nothing)
    assert [answer["metadata"]["name"] for answer in answers] == ["done"] * 3
    lengths = [headers["Content-Length"] for _, _, headers in script.requests]
    assert lengths == [lengths[0]] * 5
    assert not any("Transfer-Encoding" in headers for _, _, headers in script.requests)


@pytest.mark.parametrize("patches", [PATCHES, ()])
def test_nobody_there_is_told_of_each(store_for, patches):
    """Nothing hangs where no connection comes about."""
    answers = store_for("http://127.0.0.1:9").patch_at_once(POD, patches, nothing)
    assert [type(answer) for answer in answers] == [KubeUnavailableError] * len(patches)


def test_whoever_waits_for_answers_has_time_for_something_else(script, store_for):
    """Again and again once all have been sent, until the last answer is there."""
    asked = []
    script.dawdle(seconds=0.2)
    script.say(200, {"metadata": {"name": "done"}})
    answers = store_for(script.url).patch_at_once(POD, PATCHES, lambda: asked.append(1))
    assert [answer["metadata"]["name"] for answer in answers] == ["done"] * 3
    assert len(asked) > 1
