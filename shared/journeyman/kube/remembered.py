"""What a process remembers of the clusters that it reads: large lists, and which lists runs of a kind ask for."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from journeyman.core.api.objects import Resource
from journeyman.ports import Listing

T = TypeVar("T")
Key = tuple[str, str, str]

WORTH_KEEPING: Final = 100
"""Objects. A watch costs its connection, as it cannot be ended any other way; a list shorter than this costs less."""
MOST_OBJECTS: Final = 100_000
"""Of all clusters that a sandbox serves: about 5 kB each."""
AGAIN_AFTER_SECONDS: Final = 900.0
"""So long a list is caught up with before it is listed again, and a kind that may not be watched is not asked for."""


class Question(Struct, frozen=True):
    """A list as it was asked for; `cached` says that a slightly stale answer will do."""

    resource: Resource[Any]
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""
    cached: bool = False

    @property
    def key(self) -> Key:
        """What is selected: tells one list from others."""
        return (self.resource.path(self.namespace), self.label_selector, self.field_selector)

    @property
    def selection(self) -> dict[str, str]:
        """As arguments of a store's methods."""
        return {
            "namespace": self.namespace,
            "label_selector": self.label_selector,
            "field_selector": self.field_selector,
        }

    @property
    def is_usual(self) -> bool:
        """Whether the next run may ask the same: not where a field has a value, such as the name of one node."""
        return not self.field_selector or self.field_selector.endswith("=")


class Mirror(Struct, Generic[T], frozen=True, kw_only=True):
    """A list as it was at `version`: the objects in order of namespace and name, which are their keys."""

    question: Question
    objects: Mapping[tuple[str, str], T]
    version: str
    listed_at: float  # time.time()

    @property
    def is_due(self) -> bool:
        """Whether it is time to list it again."""
        return time.time() - self.listed_at > AGAIN_AFTER_SECONDS

    def listing(self) -> Listing[T]:
        """The objects, in order."""
        return Listing(items=tuple(self.objects.values()), resource_version=self.version, in_order=True)


class Mirrors:
    """What a process remembers, of all its clusters; the least recently used goes first. Safe to use from several threads.

    Args:
        most_objects: So many are remembered at most.
        worth_keeping: A list of fewer is not.
    """

    def __init__(self, most_objects: int = MOST_OBJECTS, *, worth_keeping: int = WORTH_KEEPING) -> None:
        self.worth_keeping = worth_keeping
        self._most_objects = most_objects
        self._kept: OrderedDict[tuple[str, Key], Mirror[Any]] = OrderedDict()
        self._asked: dict[tuple[str, str], tuple[Question, ...]] = {}
        self._unwatchable: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def of(self, cluster: str, question: Question) -> Mirror[Any] | None:
        """What is remembered of a list."""
        with self._lock:
            key = (cluster, question.key)
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, cluster: str, mirror: Mirror[Any]) -> None:
        """Remember, and forget others if it is too much."""
        with self._lock:
            self._kept[(cluster, mirror.question.key)] = mirror
            self._kept.move_to_end((cluster, mirror.question.key))
            while sum(len(kept.objects) for kept in self._kept.values()) > self._most_objects:
                self._kept.popitem(last=False)

    def forget(self, cluster: str, question: Question) -> None:
        """List it again next time."""
        with self._lock:
            self._kept.pop((cluster, question.key), None)

    def usual(self, cluster: str, purpose: str) -> tuple[Question, ...]:
        """What the last run for that purpose asked for."""
        with self._lock:
            return self._asked.get((cluster, purpose), ())

    def note(self, cluster: str, purpose: str, asked: Iterable[Question]) -> None:
        """These are the lists that a run for that purpose has asked for so far."""
        usual = tuple(question for question in asked if question.is_usual)
        with self._lock:
            self._asked[(cluster, purpose)] = usual

    def may_watch(self, cluster: str, question: Question) -> bool:
        """Whether nobody has refused lately that such objects are watched."""
        refused_at = self._unwatchable.get((cluster, question.resource.path(question.namespace)))
        return refused_at is None or time.time() - refused_at > AGAIN_AFTER_SECONDS

    def refuse(self, cluster: str, question: Question) -> bool:
        """Such objects may not be watched, so they are not remembered; whether that is news."""
        with self._lock:
            self._kept.pop((cluster, question.key), None)
            where = (cluster, question.resource.path(question.namespace))
            is_news = where not in self._unwatchable
            self._unwatchable[where] = time.time()
            return is_news
