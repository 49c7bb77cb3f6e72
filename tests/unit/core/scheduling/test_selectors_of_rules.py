"""Which pods the rules of a pod count: by namespace, label selector, and the values of the pod's own labels."""

from __future__ import annotations

import msgspec
import pytest

from journeyman.core.api.objects import Object
from tests.helpers.builders import NOW, stamp
from tests.helpers.small_clusters import (
    HOST,
    ZONES,
    apart,
    at,
    both_ways,
    by_domain,
    by_node,
    plan,
    selects,
    some,
    spread,
    zonal,
)

NAMESPACES = {
    name: msgspec.convert({"metadata": {"name": name, "labels": {"team": team}}}, Object)
    for name, team in {"default": "a", "shop": "a", "bank": "b"}.items()
}
TEAM_A = {"matchLabels": {"team": "a"}}


def expression(key, operator, *values):
    """Returns a label selector with one expression."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@both_ways
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize(
    ("term", "counted"),
    [
        ({}, "default"),
        ({"namespaces": ["bank"]}, "bank"),
        ({"namespaceSelector": TEAM_A}, "default shop"),
        ({"namespaceSelector": TEAM_A, "namespaces": ["bank"]}, "default shop bank"),
        ({"namespaceSelector": {"matchLabels": {"team": "c"}}}, ""),
        ({"namespaceSelector": {}}, "default shop bank"),
        ({"namespaceSelector": expression("team", "NotIn", "a")}, "bank"),
        ({"namespaceSelector": expression("team", "In", "a", "c")}, "default shop"),
        ({"namespaceSelector": expression("team", "Exists")}, "default shop bank"),
        ({"namespaceSelector": expression("team", "DoesNotExist")}, ""),
        ({"namespaceSelector": expression("team", "Gt", "1")}, ""),
        ({"labelSelector": None}, ""),
        ({"labelSelector": {}}, "default"),
        ({"labelSelector": expression("app", "In", "db", "db")}, "default"),
        ({"labelSelector": None, "matchLabelKeys": ["rev"]}, ""),
        ({"matchLabelKeys": ["rev", "none"]}, "default"),
        ({"matchLabelKeys": ["cell"]}, ""),
        ({"mismatchLabelKeys": ["cell"]}, "default"),
        ({"mismatchLabelKeys": ["rev"]}, ""),
    ],
)
def test_term_selects_pods_by_namespace_and_labels(term, counted, running, options):
    """A pod of app db runs in each namespace and zone, or is scheduled too; the pods of a zone must avoid those selected."""
    targets = [
        pod
        for name, zone in zip(NAMESPACES, ZONES, strict=True)
        for pod in some(
            1,
            "db",
            selects(zone=zone),
            cpu="2",
            on=f"n-{zone}" if running else "",
            metadata={"namespace": name},
            labels={"rev": "1", "cell": "y"},
        )
    ]
    own = {"rev": "1", "cell": "x"}
    waiting = [
        some(1, name, apart("db", **term), selects(zone=z), labels=own)
        for name, z in zip(NAMESPACES, ZONES, strict=True)
    ]

    found = plan(
        targets,
        *waiting,
        nodes=at(*(f"n-{zone}/{zone}:4" for zone in ZONES)) if running else ([], []),
        types=(zonal(),),
        namespaces=tuple(NAMESPACES.values()),
        options=options,
    )

    assert {key.removeprefix("default/")[:-1] for key in found.results.pod_errors} == set(counted.split())


def test_long_lists_of_namespaces_are_told_apart():
    """A selector that means a thousand namespaces is one rule with its list, but not with a list of other ones."""
    namespaces = {f"n{n}": {"metadata": {"name": f"n{n}", "labels": {"team": "a"}}} for n in range(1000)}
    everywhere = {"namespaceSelector": expression("team", "NotIn", "x")}
    listed, others = {"namespaces": sorted(namespaces)}, {"namespaces": [f"n{n}" for n in range(1, 1000)]}

    found = plan(
        some(1, "db", cpu="2", on="n0", metadata={"namespace": "n0"}),
        some(1, "everywhere", apart("db", HOST, **everywhere)),
        some(1, "listed", apart("db", HOST, **listed)),
        some(1, "others", apart("db", HOST, **others)),
        nodes=at("n0/a:4"),
        types=(),
        namespaces=tuple(msgspec.convert(body, Object) for body in namespaces.values()),
    )

    assert by_node(found) == "node-n0: 1 others; pending: 1 listed, 1 everywhere"


@both_ways
@pytest.mark.parametrize(
    ("old", "rule", "counts"),
    [
        ({}, {}, True),
        ({}, {"topologyKey": "failure-domain.beta.kubernetes.io/zone"}, True),
        ({"app": "db"}, {}, False),
        ({"metadata": {"namespace": "shop"}}, {}, False),
        ({"metadata": {"deletionTimestamp": stamp(NOW)}}, {}, False),
        ({"status": {"phase": "Succeeded"}}, {}, False),
        ({"labels": {"rev": "2"}}, {}, True),
        ({"labels": {"rev": "2"}}, {"matchLabelKeys": ["rev"]}, False),
        ({"labels": {"rev": "1"}}, {"matchLabelKeys": ["rev"]}, True),
        ({"labels": {"rev": "2"}}, {"matchLabelKeys": ["none"]}, True),
        ({}, {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}, True),
    ],
)
def test_spread_counts_running_pods_of_its_selector(old, rule, counts, options):
    """One runs in zone a; of two pods the first goes to zone b if it counts, else one to each zone."""
    changes = {"app": "web", **old}
    running = some(2, changes.pop("app"), cpu="0", on="n", name="old", **changes)

    found = plan(
        running,
        some(2, "web", spread(**rule), labels={"rev": "1"}),
        nodes=at("n/a"),
        types=(zonal("a", "b"),),
        options=options,
    )

    assert by_domain(found) == ("b: 2 web" if counts else "a: 1 web; b: 1 web")
