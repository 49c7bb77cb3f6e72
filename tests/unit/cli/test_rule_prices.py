"""Prices of scheduling rules: a cluster with and without one rule at a time."""

from __future__ import annotations

import pytest

from journeyman.cli.rule_prices import RULES, price_of_rules
from journeyman.core.api import labels
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.scheduler import solve
from tests.helpers.builders import LARGE, MEDIUM, SMALL, TYPES, a_daemon_set, a_pod, a_pool, a_snapshot

APART = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": labels.HOSTNAME}


def prices(*pods, **cluster):
    """Return the prices of the rules that cost something in this cluster, by name."""
    snapshot = a_snapshot(pods=pods, **cluster)
    catalogue = Catalogue({pool.metadata.name: TYPES for pool in snapshot.node_pools})
    gap = price_of_rules(snapshot, catalogue, solve)
    assert gap.share == pytest.approx(gap.price / gap.lower_bound - 1)
    return {found.rule: round(found.per_hour, 6) for found in gap.rules if abs(found.per_hour) > 1e-9}


def some(count, **kwargs):
    """Return so many equal pods."""
    return [a_pod(f"p{i}", **kwargs) for i in range(count)]


def test_a_cluster_without_rules_has_nothing_to_save():
    """The command computes no further plan, because no object has any of the rules."""
    made = []

    def counting(snapshot, catalogue):
        made.append(snapshot)
        return solve(snapshot, catalogue)

    gap = price_of_rules(a_snapshot(pods=tuple(some(2))), Catalogue({"default": TYPES}), counting)

    assert (gap.rules, len(made)) == ((), 1)


def test_price_of_a_selector_is_the_difference_it_makes():
    """The pods select a large node although a small one has enough capacity."""
    pinned = some(1, spec={"nodeSelector": {labels.INSTANCE_TYPE: "m.large"}})

    assert prices(*pinned) == {"selectors": round(LARGE.offerings[0].price - SMALL.offerings[0].price, 6)}


def test_anti_affinity_spread_and_host_ports_have_a_price():
    """Each of them needs three small nodes for three pods that together fit a medium one."""
    anti = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART]}}}
    spread = {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **APART}]}
    saved = round(3 * SMALL.offerings[0].price - MEDIUM.offerings[0].price, 6)

    assert prices(*some(3, spec=spread)) == {"spread": saved}
    assert prices(*some(3, spec=anti)) == {"anti-affinity": saved}


def test_rules_of_pools_and_daemons_have_a_price_too():
    """A daemon that requests a core requires larger nodes; minValues of three requires smaller ones."""
    entry = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 3}
    choosy = a_pool(spec={"template": {"spec": {"requirements": [entry]}}})

    assert prices(*some(1), daemon_sets=(a_daemon_set("agent", cpu="1"),)) == {"daemons": 0.09}
    assert set(prices(*some(7), node_pools=(choosy,))) == {"min-values"}


def test_unschedulable_pods_are_left_out_of_the_comparison():
    """A pod that selects an unknown type would need a node if its selector were removed."""
    nowhere = a_pod("nowhere", spec={"nodeSelector": {labels.INSTANCE_TYPE: "x.none"}})

    assert prices(*some(1), nowhere) == {}


def test_only_the_named_rules_are_priced():
    """An unknown rule name is an error."""
    snapshot = a_snapshot(pods=tuple(some(1, spec={"nodeSelector": {labels.INSTANCE_TYPE: "m.large"}})))
    catalogue = Catalogue({"default": TYPES})

    assert price_of_rules(snapshot, catalogue, solve, rules=("limits",)).rules == ()
    assert "selectors" in RULES
    with pytest.raises(KeyError):
        price_of_rules(snapshot, catalogue, solve, rules=("gravity",))
