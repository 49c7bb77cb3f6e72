"""Pods planned onto nodes that exist or are on their way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from journeyman.core.api.objects import QuantityText
from journeyman.core.api.resources import to_resources
from journeyman.core.scheduling.verify.claims import check_ports, total_requests
from journeyman.core.scheduling.verify.defect import Defect
from journeyman.core.scheduling.verify.index import Index, Place, name_of_node
from journeyman.core.scheduling.verify.kinds import Kind, is_daemon
from journeyman.core.scheduling.verify.matching import is_met, normalized, untolerated
from journeyman.core.scheduling.verify.possible import Alternatives, Possibilities
from journeyman.core.scheduling.verify.volumes import Storage
from journeyman.core.state import StateNode
from journeyman.errors import InvalidQuantityError


def check_existing(index: Index, storage: Storage) -> Iterator[Defect]:
    """What is wrong with these placements, one sentence each."""
    usable = {place.node.name: place for place in index.standing_places if place.node is not None and place.open}
    for name, pods in sorted(index.results.existing.items()):
        if name not in usable:
            place, shown = name_of_node(name), ", ".join(pods[:3])
            yield Defect(
                f"{place} gets pods ({shown}) although it does not exist, is going, or was to be left out", (place,)
            )
        elif pods:
            yield from _check_node(index, usable[name], storage)


def _check_node(index: Index, place: Place, storage: Storage) -> Iterator[Defect]:
    for pod, kind in place.planned.items():
        taint = untolerated(kind.pod, place.taints)
        if taint is not None:
            yield place.defect(f"pod {pod} does not tolerate taint {taint.key}:{taint.effect}")
        if not _suits(place, kind.wishes):
            yield place.defect(f"pod {pod} does not accept its labels")
        if not _suits(place, storage.wishes(kind)):
            yield place.defect(f"the volumes of pod {pod} cannot be reached from there")
    daemons = [daemon for daemon in index.daemons if _belongs(daemon, place)]
    yield from _check_room(place, daemons)
    running = [port for kind in place.staying for port in kind.ports]
    yield from check_ports(place, running, "a pod that runs there")
    yield from storage.check_attachments(place)


def _suits(place: Place, wishes: Iterable[Alternatives]) -> bool:
    """Whether the node's labels meet the wishes; of a claim that has no instance yet, whatever they come to be."""
    asked = tuple(wishes)
    if place.possible.suiting(asked) & place.rows:
        return True
    return place.is_unlaunched and place.node is not None and bool(_promised(place.node).suiting(asked))


def _promised(node: StateNode) -> Possibilities:
    """The one row of a claim that is yet to be launched: labels that it has, and those it lists values for."""
    asked = node.claim.spec.requirements if node.claim is not None else ()
    column: dict[str, frozenset[str]] = {}
    for requirement in asked:
        if requirement.operator == "In":
            rules = [other for other in asked if other.key == requirement.key]
            values = frozenset(v for v in requirement.values if all(is_met(rule, v) for rule in rules))
            column[normalized(requirement.key)] = values
    column.update((key, frozenset({value})) for key, value in node.labels.items())
    return Possibilities(1, {key: {values: 1} for key, values in column.items()})


def _belongs(daemon: Kind, place: Place) -> bool:
    """Whether a daemon runs on the node, or will."""
    return untolerated(daemon.pod, place.taints) is None and bool(place.possible.suiting(daemon.wishes) & place.rows)


def _check_room(place: Place, daemons: list[Kind]) -> Iterator[Defect]:
    """What is allocatable, less the pods there, the daemons still to come, and the pods planned. Nothing may lack."""
    try:
        left = allocatable(place.node) if place.node is not None else {}
    except InvalidQuantityError as error:
        yield place.defect(f"its size cannot be read: {error.message}")
        return
    running = total_requests(kind for kind in place.staying if is_daemon(kind.pod))
    missing = {name: max(n - running.get(name, 0), 0) for name, n in total_requests(daemons).items()}
    for taken in (total_requests(place.staying), missing, total_requests(place.planned.values())):
        for resource, amount in taken.items():
            left[resource] = left.get(resource, 0) - amount
    for resource, amount in sorted(left.items()):
        if amount < 0:
            yield place.defect(f"{resource} is overbooked by {-amount} with pods {', '.join(sorted(place.planned))}")


def allocatable(node: StateNode) -> dict[str, int]:
    """What pods may use: the node's word, until it is initialized or as long as it says nothing its claim's too.

    A claim that has no instance yet promises no more than what it asks for. Raises InvalidQuantityError.
    """
    reported = _amounts(node.node.status.allocatable if node.node else {})
    if node.claim is None or (node.initialized and reported):
        return reported
    claimed = _amounts(node.claim.status.allocatable)
    if not claimed and not reported:
        return to_resources(node.claim.spec.resources.requests, round_up=True)
    return claimed | {name: amount for name, amount in reported.items() if amount}


def _amounts(texts: Mapping[str, QuantityText]) -> dict[str, int]:
    return to_resources(texts, round_up=False)
