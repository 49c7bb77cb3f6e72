"""Compares our disruption decisions with Karpenter's, method by method, in a cluster that stays as it is.

Each method is asked whatever the others find, so that a cluster compares all of them. Three things are compared:

* candidates, with price and cost, and budgets: equal.
* the decision class (no-op, delete or replace): equal if our NodePools pack into the fewest nodes, as Karpenter does. It is
  that of a method's first command, and, of methods that examine nodes one by one, that of each candidate alone.
* the saving: if our NodePools pack by price, which is the default, our command for a candidate alone never saves less per
  hour than Karpenter's, and neither does our first command of multi-node consolidation. A command saves the price of its
  candidates less that of the cheapest offering of each replacement. Which candidate comes first is no difference of ours
  where Karpenter takes the NodePools in a random order, so savings of single nodes are compared candidate by candidate.

Karpenter breaks ties at random, in its order of candidates, pods and nodes. A difference of decisions counts only if all
`KARPENTER_RUNS` of its answers show it.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from journeyman.cli.solve import controller_of, methods
from journeyman.core.api.labels import PACKING
from journeyman.core.disruption.controller import DisruptionController
from journeyman.core.scheduling.nodeclaim_templates import FEWEST_NODES
from journeyman_simulator.judge import verify_strictly
from tests.differential.compare import parse, shuffled
from tests.differential.karpenter import Karpenter

JSONDict = dict[str, Any]
KARPENTER_RUNS = 8
TOLERANCE = 1e-9
NO_OP: JSONDict = {"decision": "no-op", "candidates": [], "replacements": [], "saving": 0.0}
REPEATED = {"class", "alone", "saving"}
"""Kinds of findings that a tie may explain."""

KINDS = {
    "oracle": "Karpenter cannot answer",
    "crash": "our methods raise an exception",
    "candidates": "a method has other candidates than Karpenter's",
    "facts": "a candidate has another price or cost than with Karpenter",
    "budgets": "the budgets allow another number of nodes",
    "class": "a method decides otherwise",
    "alone": "a method decides otherwise about a single candidate",
    "saving": "our command saves less",
    "verify": "our command does not pass verification",
    "order": "our commands depend on the order of the objects",
}


class Difference(Struct, frozen=True, kw_only=True):
    """A defect of ours, or a difference from Karpenter.

    `method` is Karpenter's name; `node` is empty for a whole method. `ours` and `karpenters` are the commands that differ.
    """

    kind: str
    method: str
    text: str
    node: str = ""
    ours: JSONDict = {}
    karpenters: JSONDict = {}

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two differences of two runs the same one."""
        return (self.kind, self.method, self.node)


class Comparison(Struct, frozen=True, kw_only=True):
    """The differences in one cluster, and how much was compared.

    `compared` has the number of comparisons by kind and method, `classes` Karpenter's decisions by method and class.
    """

    differences: tuple[Difference, ...]
    compared: Counter[tuple[str, str]]
    classes: Counter[tuple[str, str]]


class _Answer(Struct, frozen=True, kw_only=True):
    """What our methods find, by Karpenter's name of the method, and what is wrong with it by itself."""

    by_method: dict[str, JSONDict]
    defects: tuple[Difference, ...]


class _Answers(Struct, frozen=True, kw_only=True):
    """Our answers: packing into the fewest nodes, and packing by price."""

    fewest: _Answer
    by_price: _Answer


def compare_disruption(scenario: JSONDict, karpenter: Karpenter, *, check_order: bool = False) -> Comparison:
    """Return the differences between our decisions in a scenario and Karpenter's.

    With `check_order` also the differences between our decisions for two orders of the objects.
    """
    answer = karpenter.solve(scenario)
    if answer.get("error"):
        return _only(Difference(kind="oracle", method="", text=answer["error"]))
    try:
        fewest = with_fewest_nodes(scenario)
        ours = _Answers(fewest=_our_answer(fewest), by_price=_our_answer(scenario))
        defects = [*ours.fewest.defects, *ours.by_price.defects]
        if check_order and _our_answer(shuffled(fewest)) != ours.fewest:
            defects.append(Difference(kind="order", method="", text="the answers for two orders of the objects differ"))
    except Exception as error:  # noqa: BLE001 - every exception is a difference
        return _only(Difference(kind="crash", method="", text="".join(traceback.format_exception(error))))
    compared: Counter[tuple[str, str]] = Counter()
    found = list(_compare(ours, answer, compared))
    uncertain = {d.key for d in found if d.kind in REPEATED}
    for _ in range(KARPENTER_RUNS - 1):
        if not uncertain:
            break
        uncertain &= {d.key for d in _compare(ours, karpenter.solve(scenario), Counter())}
    kept = [d for d in found if d.kind not in REPEATED or d.key in uncertain]
    classes = Counter((m["method"], _class_of(m["commands"])) for m in answer["methods"])
    return Comparison(differences=(*defects, *kept), compared=compared, classes=classes)


def _only(difference: Difference) -> Comparison:
    return Comparison(differences=(difference,), compared=Counter(), classes=Counter())


def _our_answer(scenario: JSONDict) -> _Answer:
    controller = controller_of(parse(scenario), verify=verify_strictly)
    by_method = {found["method"]: found for found in methods(controller)}
    return _Answer(by_method=by_method, defects=tuple(_unverified(controller)))


def with_fewest_nodes(scenario: JSONDict) -> JSONDict:
    """Return the scenario with the annotation for Karpenter's packing on all NodePools."""
    return {**scenario, "objects": [_annotated(o) if o["kind"] == "NodePool" else o for o in scenario["objects"]]}


def _annotated(pool: JSONDict) -> JSONDict:
    annotations = {**pool["metadata"].get("annotations", {}), PACKING: FEWEST_NODES}
    return {**pool, "metadata": {**pool["metadata"], "annotations": annotations}}


def _unverified(controller: DisruptionController) -> Iterator[Difference]:
    """Yield what verification finds wrong with our commands; the controller has cached their simulations."""
    for evaluation in controller.evaluate_methods():
        for command in evaluation.commands:
            defects = controller.simulation.verify(command)
            nodes = ", ".join(c.node for c in command.candidates)
            if defects:
                text = f"{nodes}: {'; '.join(str(defect) for defect in defects)}"
                yield Difference(kind="verify", method=evaluation.method, text=text, node=nodes)


def _compare(ours: _Answers, answer: JSONDict, compared: Counter[tuple[str, str]]) -> Iterator[Difference]:
    """Yield the differences to one answer of Karpenter; methods that we do not have are left out."""
    for theirs in answer["methods"]:
        method = theirs["method"]
        if method not in ours.fewest.by_method:
            continue
        mine, by_price = ours.fewest.by_method[method], ours.by_price.by_method[method]
        compared.update((kind, method) for kind in ("candidates", "budgets", "class"))
        yield from _compare_candidates(mine, theirs)
        if mine["budgets"] != theirs["budgets"]:
            text = f"we allow {mine['budgets']}, Karpenter {theirs['budgets']}"
            yield Difference(kind="budgets", method=method, text=text)
        yield from _compare_classes(mine, theirs)
        for node in (c["name"] for c in theirs["candidates"] if "alone" in mine):
            compared["alone", method] += 1
            yield from _compare_alone(node, mine, theirs)
            if "Drift" not in method:
                compared["saving", method] += 1
                yield from _compare_savings(method, node, _alone(by_price, node), _alone(theirs, node))
        if "MultiNode" in method:
            compared["saving", method] += 1
            yield from _compare_savings(method, "", _first(by_price), _first(theirs))


def _compare_candidates(mine: JSONDict, theirs: JSONDict) -> Iterator[Difference]:
    own, karpenters = ({c["name"]: c for c in side["candidates"]} for side in (mine, theirs))
    if own.keys() != karpenters.keys():
        text = f"only ours: {sorted(own.keys() - karpenters.keys())}, only Karpenter's: {sorted(karpenters.keys() - own.keys())}"
        yield Difference(kind="candidates", method=theirs["method"], text=text)
    for name in sorted(own.keys() & karpenters.keys()):
        if any(abs(own[name][fact] - karpenters[name][fact]) > TOLERANCE for fact in ("price", "cost")):
            text = f"ours {own[name]}, Karpenter's {karpenters[name]}"
            yield Difference(kind="facts", method=theirs["method"], text=text, node=name)


def _compare_classes(mine: JSONDict, theirs: JSONDict) -> Iterator[Difference]:
    """Yield a difference of the methods' first commands; static drift has several at once, whose number counts too."""
    own, karpenters = mine["commands"], theirs["commands"]
    is_same = _class_of(own) == _class_of(karpenters) and len(own) == len(karpenters)
    if is_same or _is_other_turn(mine, theirs):
        return
    why = next(iter(theirs.get("whyNot", {}).values()), "") if not karpenters else ""
    text = f"we {_describe(own)}; Karpenter {_describe(karpenters)}; {why}"
    yield Difference(kind="class", method=theirs["method"], text=text, ours=_first(mine), karpenters=_first(theirs))


def _is_other_turn(mine: JSONDict, theirs: JSONDict) -> bool:
    """Return whether both decide the same about the two nodes that come first; Karpenter's order of NodePools is random."""
    nodes = [name for side in (mine, theirs) for command in side["commands"] for name in command["candidates"]]
    both_act = bool(mine["commands"]) and bool(theirs["commands"])
    return (
        "alone" in mine
        and both_act
        and all(_alone(mine, node)["decision"] == _alone(theirs, node)["decision"] for node in nodes)
    )


def _compare_alone(node: str, mine: JSONDict, theirs: JSONDict) -> Iterator[Difference]:
    own, karpenters = _alone(mine, node), _alone(theirs, node)
    if own["decision"] != karpenters["decision"]:
        why = theirs.get("whyNot", {}).get(node, "") or mine["whyNot"].get(node, "")
        text = f"we {_describe([own])}; Karpenter {_describe([karpenters])}; {why}"
        yield Difference(kind="alone", method=theirs["method"], text=text, node=node, ours=own, karpenters=karpenters)


def _compare_savings(method: str, node: str, own: JSONDict, karpenters: JSONDict) -> Iterator[Difference]:
    if own["saving"] < karpenters["saving"] - TOLERANCE:
        text = f"we save {own['saving']:.6f}: {_describe([own])}; Karpenter {karpenters['saving']:.6f}: {_describe([karpenters])}"
        yield Difference(kind="saving", method=method, text=text, node=node, ours=own, karpenters=karpenters)


def _alone(side: JSONDict, node: str) -> JSONDict:
    found: JSONDict = side.get("alone", {}).get(node, NO_OP)
    return found


def _first(side: JSONDict) -> JSONDict:
    return next(iter(side["commands"]), NO_OP)


def _class_of(commands: Sequence[JSONDict]) -> str:
    return str(commands[0]["decision"]) if commands else "no-op"


def _describe(commands: Iterable[JSONDict]) -> str:
    """Return what the commands do, with the cheapest types of a replacement."""
    texts = []
    for command in commands:
        new = [f"{r['cheapestOffering']} of {len(r['instanceTypes'])} types" for r in command["replacements"]]
        by = f" by {', '.join(new)}" if new else ""
        texts.append(f"{command['decision']} {', '.join(command['candidates'])}{by}".strip())
    return " and ".join(texts) or "no-op"
