"""What goes wrong with messages, once their sender has been told that they are accepted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from journeyman_simulator.account.queues import DELIVERED, Fate
from journeyman_simulator.faults.coverage import Coverage
from journeyman_simulator.faults.story import MessageFault, MessageKind


class MessageFaults:
    """The faults of one story, each waiting for its message.

    Args:
        faults: Of messages; of several for one message the first counts.
        coverage: Counts.
        note: Is told of each fault that happens.
    """

    def __init__(self, faults: Iterable[MessageFault], coverage: Coverage, note: Callable[[str], None]) -> None:
        self._waiting: dict[tuple[str, int], MessageFault] = {}
        for fault in faults:
            self._waiting.setdefault((fault.queue, fault.nth), fault)
        self._coverage = coverage
        self._note = note
        self._sent: Counter[str] = Counter()
        self.queues: Mapping[str, str] = {}
        """What the story calls the queues of the account, by their names there; others are let be."""
        self.storm = True

    def decide(self, name: str, _body: str) -> Fate:
        """`account.queues.Queues.decide`."""
        queue = self.queues.get(name, "")
        if not self.storm or not queue:
            return DELIVERED
        self._sent[queue] += 1
        fault = self._waiting.get((queue, self._sent[queue]))
        if fault is None or (fault.kind is MessageKind.REORDER and name.endswith(".fifo")):
            return DELIVERED
        self._coverage.lost(queue, fault.kind.value)
        self._note(
            f"{fault.kind.value} message {fault.nth} to {queue}{f' {fault.seconds:g} s' if fault.seconds else ''}"
        )
        return _fate(fault)


def _fate(fault: MessageFault) -> Fate:
    if fault.kind is MessageKind.DROP:
        return Fate(copies=0)
    if fault.kind is MessageKind.DOUBLE:
        return Fate(copies=2)
    if fault.kind is MessageKind.DELAY:
        return Fate(delay_seconds=fault.seconds)
    return Fate(overtakes=True)
