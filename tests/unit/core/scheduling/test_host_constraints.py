"""Constraints within one node, as axes and conflicts: which pods may share a node."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector
from journeyman.core.scheduling.host_constraints import host_constraints_of
from journeyman.core.scheduling.pod_classes import HostPort, PodClass
from journeyman.core.scheduling.requirements import EMPTY
from journeyman.core.scheduling.topology import InverseAntiAffinity, TopologyGroup, TopologySpread
from tests.helpers.builders import a_pod


def group(app="web", key=labels.HOSTNAME):
    """Returns the topology group of the pods of an app, by node unless `key` differs."""
    selector = LabelSelector(match_labels={"app": app})
    return TopologyGroup(key=key, namespaces=frozenset({"default"}), selector=selector, id=f"{key} {app}".encode())


def spread(app="web", skew=1, key=labels.HOSTNAME):
    """Returns a spread that allows `skew` pods of an app per node, unless `key` differs."""
    found = group(app, key)
    return TopologySpread(
        group=found, max_skew=skew, min_domains=1, honors_node_affinity=True, honors_node_taints=False
    )


def a_row(app="web", **rules):
    """Returns a row (a pod class) with one pod of an app."""
    base = {"requests": {}, "terms": (EMPTY,), "tolerations": (), "spreads": ()}
    return PodClass(pods=(a_pod(app),), namespace="default", labels={"app": app}, **{**base, **rules})


def port(number=80, address=""):
    """Returns a TCP host port."""
    return HostPort(port=number, protocol="TCP", address=address)


def may_share(caps, *counts, beside=()):
    """Returns whether one new node may hold these counts of pods, one count per row, beside these host ports."""
    wanted = np.array(counts)
    here = wanted > 0
    apart = (caps.counted & here[:, None]).any(axis=0) & (caps.bound & here[:, None]).any(axis=0)
    return bool((wanted @ caps.limited_takes <= caps.caps_with_used_ports(beside)).all()) and not apart.any()


def test_hostname_spread_allows_max_skew_pods_per_node():
    """Rows whose spreads count the same pods share an axis; counted pods without a spread are not limited."""
    caps = host_constraints_of([a_row(spreads=(spread(skew=2),)), a_row(spreads=(spread(skew=2),)), a_row()])

    assert may_share(caps, 1, 1, 5)
    assert not may_share(caps, 2, 1, 0)


def test_rows_with_different_max_skew_over_the_same_pods_share_no_node():
    """Each row may have nodes of its own."""
    caps = host_constraints_of([a_row(spreads=(spread(skew=1),)), a_row(spreads=(spread(skew=3),))])

    assert may_share(caps, 1, 0)
    assert may_share(caps, 0, 3)
    assert not may_share(caps, 1, 1)
    assert not may_share(caps, 0, 4)


def test_stricter_of_two_spreads_over_the_same_pods_applies():
    """The pod has two spreads over the same pods, with maxSkew 3 and 1."""
    caps = host_constraints_of([a_row(spreads=(spread(skew=3), spread(skew=1)))])

    assert may_share(caps, 1)
    assert not may_share(caps, 2)


def test_hostname_spread_does_not_limit_pods_that_it_does_not_count():
    """The selector of the spread does not match the pods that have the spread."""
    assert may_share(host_constraints_of([a_row("web", spreads=(spread("db"),))]), 9)


def test_self_anti_affinity_allows_one_pod_per_node():
    """The limit applies within a pod class and across pod classes."""
    caps = host_constraints_of([a_row(anti_affinities=(group(),)), a_row(anti_affinities=(group(),))])

    assert may_share(caps, 1, 0)
    assert not may_share(caps, 2, 0)
    assert not may_share(caps, 1, 1)


@pytest.mark.parametrize("theirs", [(), (group("web"),)])
def test_anti_affinity_excludes_matching_pods_from_its_nodes(theirs):
    """Pods with the anti-affinity may share a node, whether or not the excluded pods have self-anti-affinity."""
    caps = host_constraints_of([a_row("db", anti_affinities=(group("web"),)), a_row("web", anti_affinities=theirs)])

    assert may_share(caps, 5, 0)
    assert may_share(caps, 0, 1)
    assert not may_share(caps, 1, 1)


def test_constraints_over_other_topology_keys_are_no_host_constraints():
    """Domain assignment handles zones."""
    wide = a_row(spreads=(spread(key=labels.ZONE),), anti_affinities=(group(key=labels.ZONE),))

    assert host_constraints_of([wide, wide]).takes.shape == (2, 0)


def test_host_port_is_used_by_one_pod_per_node():
    """The limit applies within a row and across rows; pods with other ports may share the node."""
    caps = host_constraints_of([a_row(ports=(port(80),)), a_row(ports=(port(80), port(81))), a_row(ports=(port(82),))])

    assert may_share(caps, 1, 0, 1)
    assert not may_share(caps, 2, 0, 0)
    assert not may_share(caps, 1, 1, 0)


def test_host_port_addresses_conflict_only_when_equal_or_wildcard():
    """An empty address and 0.0.0.0 are wildcards, as in the kubelet."""
    caps = host_constraints_of([a_row(ports=(port(address=a),)) for a in ("10.0.0.1", "10.0.0.2", "", "0.0.0.0")])

    assert may_share(caps, 1, 1, 0, 0)
    for clash in ((1, 0, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1), (2, 0, 0, 0)):
        assert not may_share(caps, *clash)


def test_daemon_host_ports_are_in_use_on_new_nodes():
    """A daemon's port at one address conflicts with the wildcard address, but not with another address."""
    daemon = port(address="10.0.0.9")
    caps = host_constraints_of([a_row(ports=(port(),)), a_row(ports=(port(address="10.0.0.1"),))], used_ports=[daemon])

    assert not may_share(caps, 1, 0, beside=[daemon])
    assert may_share(caps, 0, 1, beside=[daemon])
    assert may_share(caps, 1, 0, beside=[port(443)])


def test_equal_axes_for_new_nodes_merge_and_keep_all_their_ports():
    """One row uses two ports; a daemon on either of them excludes the row."""
    rows = [a_row(ports=(port(80), port(81))), a_row("db", ports=(port(82),))]
    daemons = [port(n, "10.0.0.9") for n in (80, 81, 82)]
    caps = host_constraints_of(rows, used_ports=daemons).for_new_nodes(np.array([3, 2]))

    assert len(caps.axes) == 2
    for taken, first, second in ((daemons[0], False, True), (daemons[1], False, True), (daemons[2], True, False)):
        assert (may_share(caps, 1, 0, beside=[taken]), may_share(caps, 0, 1, beside=[taken])) == (first, second)


def test_anti_affinity_of_running_pods_is_a_conflict_with_named_hosts():
    """The conflict lists the hosts, and it counts the rows that the anti-affinity selects."""
    caps = host_constraints_of([a_row(), a_row("db")], [InverseAntiAffinity(group=group(), domains=frozenset({"n1"}))])

    assert [conflict.domains for conflict in caps.conflicts] == [{"n1"}]
    assert caps.counted.tolist() == [[True], [False]]


def test_preferred_anti_affinity_binds_only_its_own_row():
    """The preference binds the row that has it, but is not a lasting constraint."""
    soft = group().preferred
    caps = host_constraints_of([a_row("db", anti_affinities=(soft,), preferred_groups=frozenset({soft.id})), a_row()])

    assert caps.bound[0].any()
    assert not caps.lasting.any()


def test_new_nodes_get_only_the_constraints_that_can_be_violated():
    """One pod alone violates nothing, equal axes merge, and a conflict needs both sides; daemons may use any port."""
    rows = [
        a_row(spreads=(spread(skew=1),), anti_affinities=(group(),)),
        a_row("db", anti_affinities=(group("cache"),)),
        a_row("cache"),
        a_row("dns", ports=(port(),)),
    ]
    caps = host_constraints_of(rows, used_ports=[port()])

    few = caps.for_new_nodes(np.array([1, 1, 0, 1]))
    many = caps.for_new_nodes(np.array([2, 1, 1, 1]))

    assert few.names == ("host port 80/TCP",)
    assert few.conflicts == ()
    assert len(many.axes) == 2
    assert not may_share(many, 2, 0, 0, 0)
    assert not may_share(many, 0, 1, 1, 0)


def test_follows_and_leads_mark_the_two_sides_of_a_pod_affinity():
    """`follows` marks the rows with the affinity, and `leads` marks the rows that the affinity selects."""
    caps = host_constraints_of([a_row(affinities=(group("db"),)), a_row("db")])

    assert caps.follows.tolist() == [[True], [False]]
    assert caps.leads.tolist() == [[False], [True]]


def test_rule_that_holds_however_the_pods_are_placed_is_left_out():
    """One pod that its own rule counts violates it only together with a running pod; a second pod of the class can, too."""
    alone = [a_row(anti_affinities=(group(),), spreads=(spread(),), ports=(port(),)), a_row("db")]
    pair = [replace(alone[0], pods=(a_pod("a"), a_pod("b"))), alone[1]]
    level = replace(alone[0], anti_affinities=(), spreads=(), ports=())  # the same pod without its preferences

    def constraints(rows, running=(), used_ports=()):
        return host_constraints_of(rows, used_ports=used_ports, is_running=lambda g: g in running)

    def sizes(caps):
        return len(caps.axes), len(caps.conflicts)

    assert sizes(constraints(alone)) == sizes(constraints([*alone, level])) == (0, 0)
    assert sizes(constraints(alone, [group()], [port()])) == (3, 1)
    assert sizes(constraints(pair)) == (3, 0)
    assert not may_share(constraints(pair), 2, 0)
    assert sizes(constraints([a_row(anti_affinities=(group("db"),)), *alone[1:]])) == (0, 1)


def test_anti_affinity_of_running_pods_matters_only_if_it_counts_a_row():
    """In a large cluster most running pods keep apart from their own kind only."""
    inverse = [InverseAntiAffinity(group=group(app), domains=frozenset({"n1"})) for app in ("web", "db", "dns")]

    caps = host_constraints_of([a_row("db")], inverse)

    assert [conflict.domains for conflict in caps.conflicts] == [{"n1"}]


def test_tables_are_paid_for_before_they_are_made():
    """A caller whose effort does not suffice raises, and no table is made."""
    columns = []
    rows = [a_row(anti_affinities=(group(),), affinities=(group("db"),))]

    host_constraints_of(rows, spend_on_columns=columns.append)

    assert columns == [2 * 1 + 3 * 1 + 2 * 1]  # an axis, a conflict and a group to follow
