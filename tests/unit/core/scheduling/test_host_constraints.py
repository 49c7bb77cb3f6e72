"""Rules about one node alone as axes and conflicts: what they let share a node."""

from __future__ import annotations

import numpy as np
import pytest

from journeyman.core.api import labels
from journeyman.core.api.objects import LabelSelector
from journeyman.core.scheduling.host_constraints import host_constraints_of
from journeyman.core.scheduling.pod_classes import HostPort, PodClass
from journeyman.core.scheduling.requirements import EMPTY
from journeyman.core.scheduling.topology import InverseAntiAffinity, TopologyGroup, TopologySpread
from tests.helpers.builders import a_pod


def group(app="web", key=labels.HOSTNAME):
    """The pods of an app, by node."""
    selector = LabelSelector(match_labels={"app": app})
    return TopologyGroup(key=key, namespaces=frozenset({"default"}), selector=selector, id=f"{key} {app}".encode())


def spread(app="web", skew=1, key=labels.HOSTNAME):
    """So many of an app's pods a node."""
    found = group(app, key)
    return TopologySpread(
        group=found, max_skew=skew, min_domains=1, honors_node_affinity=True, honors_node_taints=False
    )


def a_row(app="web", **rules):
    """A row of pods of an app."""
    base = {"requests": {}, "terms": (EMPTY,), "tolerations": (), "spreads": ()}
    return PodClass(pods=(a_pod(app),), namespace="default", labels={"app": app}, **{**base, **rules})


def port(number=80, address=""):
    """A host port."""
    return HostPort(port=number, protocol="TCP", address=address)


def may_share(caps, *counts, beside=()):
    """Whether one new node may hold so many pods of each row."""
    wanted = np.array(counts)
    here = wanted > 0
    apart = (caps.counted & here[:, None]).any(axis=0) & (caps.bound & here[:, None]).any(axis=0)
    return bool((wanted @ caps.takes <= caps.beside(beside)).all()) and not apart.any()


def test_spread_gives_a_node_as_many_as_its_skew():
    """Rows over the same pods share the axis; pods merely counted are free."""
    caps = host_constraints_of([a_row(spreads=(spread(skew=2),)), a_row(spreads=(spread(skew=2),)), a_row()])

    assert may_share(caps, 1, 1, 5)
    assert not may_share(caps, 2, 1, 0)


def test_rows_with_different_skews_over_the_same_pods_share_no_node():
    """Each may have nodes of its own."""
    caps = host_constraints_of([a_row(spreads=(spread(skew=1),)), a_row(spreads=(spread(skew=3),))])

    assert may_share(caps, 1, 0)
    assert may_share(caps, 0, 3)
    assert not may_share(caps, 1, 1)
    assert not may_share(caps, 0, 4)


def test_of_two_spreads_over_the_same_pods_the_stricter_holds():
    """A pod may say it twice."""
    caps = host_constraints_of([a_row(spreads=(spread(skew=3), spread(skew=1)))])

    assert may_share(caps, 1)
    assert not may_share(caps, 2)


def test_pods_that_a_spread_does_not_count_take_nothing_of_it():
    """Its own pods are not those it selects."""
    assert may_share(host_constraints_of([a_row("web", spreads=(spread("db"),))]), 9)


def test_anti_affinity_to_its_own_kind_allows_one_a_node():
    """Whatever the class."""
    caps = host_constraints_of([a_row(anti_affinities=(group(),)), a_row(anti_affinities=(group(),))])

    assert may_share(caps, 1, 0)
    assert not may_share(caps, 2, 0)
    assert not may_share(caps, 1, 1)


@pytest.mark.parametrize("theirs", [(), (group("web"),)])
def test_anti_affinity_to_others_keeps_these_off_its_nodes(theirs):
    """Many of its own may share a node, be those it shuns apart themselves or not."""
    caps = host_constraints_of([a_row("db", anti_affinities=(group("web"),)), a_row("web", anti_affinities=theirs)])

    assert may_share(caps, 5, 0)
    assert may_share(caps, 0, 1)
    assert not may_share(caps, 1, 1)


def test_rules_over_other_labels_are_none_of_a_nodes():
    """Domain assignment handles zones."""
    wide = a_row(spreads=(spread(key=labels.ZONE),), anti_affinities=(group(key=labels.ZONE),))

    assert host_constraints_of([wide, wide]).takes.shape == (2, 0)


def test_a_port_is_had_once_a_node():
    """By one pod, of whatever row; other ports are free."""
    caps = host_constraints_of([a_row(ports=(port(80),)), a_row(ports=(port(80), port(81))), a_row(ports=(port(82),))])

    assert may_share(caps, 1, 0, 1)
    assert not may_share(caps, 2, 0, 0)
    assert not may_share(caps, 1, 1, 0)


def test_addresses_share_a_port_unless_one_means_all_of_them():
    """As the kubelet has it."""
    caps = host_constraints_of([a_row(ports=(port(address=a),)) for a in ("10.0.0.1", "10.0.0.2", "", "0.0.0.0")])

    assert may_share(caps, 1, 1, 0, 0)
    for clash in ((1, 0, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1), (2, 0, 0, 0)):
        assert not may_share(caps, *clash)


def test_ports_of_daemons_are_taken_from_the_start():
    """A daemon at one address stands in the way of that address and of all of them."""
    daemon = port(address="10.0.0.9")
    caps = host_constraints_of([a_row(ports=(port(),)), a_row(ports=(port(address="10.0.0.1"),))], used_ports=[daemon])

    assert not may_share(caps, 1, 0, beside=[daemon])
    assert may_share(caps, 0, 1, beside=[daemon])
    assert may_share(caps, 1, 0, beside=[port(443)])


def test_equal_axes_of_new_nodes_are_one_with_all_their_ports():
    """Two ports that the same row takes: a daemon at either stands in the way."""
    rows = [a_row(ports=(port(80), port(81))), a_row("db", ports=(port(82),))]
    daemons = [port(n, "10.0.0.9") for n in (80, 81, 82)]
    caps = host_constraints_of(rows, used_ports=daemons).for_new_nodes(np.array([3, 2]))

    assert len(caps.axes) == 2
    for taken, first, second in ((daemons[0], False, True), (daemons[1], False, True), (daemons[2], True, False)):
        assert (may_share(caps, 1, 0, beside=[taken]), may_share(caps, 0, 1, beside=[taken])) == (first, second)


def test_running_pods_rules_are_conflicts_with_named_hosts():
    """Who is counted is known; the conflict says where."""
    caps = host_constraints_of([a_row(), a_row("db")], [InverseAntiAffinity(group=group(), domains=frozenset({"n1"}))])

    assert [conflict.domains for conflict in caps.conflicts] == [{"n1"}]
    assert caps.counted.tolist() == [[True], [False]]


def test_a_preference_binds_for_its_own_row_alone():
    """It is bound, but not for good."""
    soft = group().preferred
    caps = host_constraints_of([a_row("db", anti_affinities=(soft,), preferred_groups=frozenset({soft.id})), a_row()])

    assert caps.bound[0].any()
    assert not caps.lasting.any()


def test_new_nodes_need_only_what_can_be_violated():
    """One pod breaks no rule of its own, equal axes are one, and conflicts need both sides; ports stay for daemons."""
    rows = [
        a_row(spreads=(spread(skew=1),), anti_affinities=(group(),)),
        a_row("db", anti_affinities=(group("cache"),)),
        a_row("cache"),
        a_row("dns", ports=(port(),)),
    ]
    caps = host_constraints_of(rows)

    few = caps.for_new_nodes(np.array([1, 1, 0, 1]))
    many = caps.for_new_nodes(np.array([2, 1, 1, 1]))

    assert few.names == ("host port 80/TCP",)
    assert few.conflicts == ()
    assert len(many.axes) == 2
    assert not may_share(many, 2, 0, 0, 0)
    assert not may_share(many, 0, 1, 1, 0)


def test_who_follows_whom():
    """Rows that go only where a pod of a group is, and the rows whose pods those are."""
    caps = host_constraints_of([a_row(affinities=(group("db"),)), a_row("db")])

    assert caps.follows.tolist() == [[True], [False]]
    assert caps.leads.tolist() == [[False], [True]]
