"""Rules about one node: spread over hosts, anti-affinity of hosts, and host ports, on new and existing nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.scheduler import pods_to_schedule
from journeyman_simulator.judge import verify_strictly
from tests.helpers.builders import LARGE, SMALL, a_daemon_set
from tests.helpers.small_clusters import (
    ARM,
    HOST,
    ZONE,
    apart,
    at,
    both_ways,
    by_node,
    expected_of,
    listens,
    only,
    plan,
    prefers,
    selects,
    some,
    spread,
    table,
    zonal,
)

BIG = zonal(cpu=64, price=0.4)
ANY = "web|db"


@both_ways
@table(
    "pods",
    "nodes",
    "expected",
    max_skew_pods_per_node=(
        [some(5, "web", spread(HOST, skew=2))],
        (),
        "z.large: 1 web; z.large: 2 web; z.large: 2 web",
    ),
    counted_pods_without_a_spread_are_not_limited=(
        [some(2, "web", spread(HOST, app=ANY)), some(3, "db", cpu="500m")],
        (),
        "z.large: 1 web, 3 db; z.large: 1 web",
    ),
    pods_of_two_apps_share_nodes=(
        [some(2, "db", spread(HOST, app="db")), some(2, "web", spread(HOST))],
        (),
        "z.large: 1 web, 1 db; z.large: 1 web, 1 db",
    ),
    pods_of_two_apps_of_different_architectures=(
        [
            some(2, "db", spread(HOST, app="db"), selects(arch="arm64")),
            some(2, "web", spread(HOST), selects(arch="amd64")),
        ],
        (),
        "arm.large: 1 db; arm.large: 1 db; z.large: 1 web; z.large: 1 web",
    ),
    pods_that_are_not_counted_are_not_limited=([some(9, "web", spread(HOST, app="db"))], (), "z.large: 9 web"),
    the_stricter_of_two=([some(2, "web", spread(HOST, skew=3), spread(HOST))], (), "z.large: 1 web; z.large: 1 web"),
    different_max_skews_over_the_same_pods=(
        [some(1, "web", spread(HOST, app=ANY)), some(3, "db", spread(HOST, app=ANY, skew=3), cpu="500m")],
        (),
        "z.large: 3 db; z.large: 1 web",
    ),
    running_pods_count=(
        [some(1, "web", cpu="0", on="n0", name="old"), some(4, "web", spread(HOST, skew=2))],
        ("n0/a:4", "n1/a:4"),
        "node-n0: 1 web; node-n1: 2 web; z.large: 1 web",
    ),
    running_pods_that_exceed_max_skew=(
        [some(2, "db", cpu="0", on="n0"), some(5, "web", spread(HOST, app="db"))],
        ("n0/a:4", "n1/a:4"),
        "node-n1: 4 web; z.large: 1 web",
    ),
    one_pod_per_node_of_two_classes=(
        [some(2, "web", apart(key=HOST)), some(1, "web", apart(key=HOST), cpu="2", name="big")],
        (),
        "z.large: 1 web; z.large: 1 web; z.large: 1 web",
    ),
    excluded_pods_may_share_among_themselves=(
        [some(5, "web", apart("db", HOST)), some(2, "db")],
        (),
        "z.large: 2 db; z.large: 5 web",
    ),
    excluded_pods_that_keep_apart_themselves=(
        [some(3, "db", apart(key=HOST)), some(2, "web", apart(key=HOST))],
        (),
        "z.large: 3 db; z.large: 1 web; z.large: 1 web",
    ),
    running_pods_exclude_in_both_directions=(
        [
            some(1, "db", cpu="0", on="n0"),
            some(1, "other", apart(key=HOST), cpu="0", on="n1"),
            some(4, "web", apart("db", HOST)),
        ],
        ("n0/a:4", "n1/a:4", "n2/a:4"),
        "node-n2: 4 web",
    ),
    preference_binds_only_its_own_pods=(
        [some(1, "web", prefers(apart("db", HOST)), cpu="2"), some(2, "db")],
        ("n0/a:4",),
        "node-n0: 1 web, 2 db",
    ),
    other_ports_share_a_node=(
        [
            some(1, "web", listens(80)),
            some(1, "web", listens(80, 81), name="two"),
            some(1, "web", listens(82), name="x"),
        ],
        (),
        "z.large: 1 web; z.large: 2 web",
    ),
    port_of_a_running_pod=(
        [some(1, "old", listens(80), on="n0"), some(2, "web", listens(80))],
        ("n0/a:4", "n1/a:4"),
        "node-n1: 1 web; z.large: 1 web",
    ),
)
def test_rules_about_hosts_limit_the_pods_of_a_node(pods, nodes, expected, options):
    """One node has capacity for all pods."""
    found = plan(*pods, nodes=at(*nodes), types=(BIG, ARM), options=options)

    assert by_node(found) == expected_of(expected, options)


PORT = {"port": 80, "protocol": "TCP", "hostIP": ""}


@both_ways
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [
        ({}, {}, True),
        ({}, {"port": 81}, False),
        ({}, {"protocol": "UDP"}, False),
        ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.1"}, True),
        ({"hostIP": "10.0.0.1"}, {"hostIP": "10.0.0.2"}, False),
        ({"hostIP": "10.0.0.1"}, {"hostIP": "0.0.0.0"}, True),
        ({"hostIP": "::"}, {"hostIP": "10.0.0.1"}, True),
        ({}, {"hostIP": "10.0.0.1"}, True),
    ],
)
def test_host_ports_conflict_if_port_protocol_and_address_match(first, second, conflict, running, options):
    """No address means all addresses; container ports and the ports of init containers do not count."""

    def on_port(**port):
        changes = {**PORT, **port}
        spec = listens(changes.pop("port"), **changes)
        spec["containers"][0]["ports"].append({"containerPort": 9})
        return {**spec, "initContainers": [{"name": "i", "image": "i", "ports": [{"hostPort": 99}]}]}

    found = plan(
        some(1, "one", on_port(**first), on="n" if running else ""),
        some(1, "two", on_port(**second)),
        nodes=at("n/a:4") if running else ([], []),
        types=(BIG,),
        options=options,
    )

    alone, shared = (
        ("z.large: 1 two", "node-n: 1 two") if running else ("z.large: 1 one; z.large: 1 two", "z.large: 1 two, 1 one")
    )
    assert by_node(found) == (alone if conflict else shared)


# -- host ports of DaemonSets


@both_ways
@pytest.mark.parametrize(
    ("own", "daemons", "placed"),
    [
        ({}, [(80, {})], False),
        ({}, [(80, {"hostIP": "10.0.0.9"})], False),
        ({"hostIP": "10.0.0.1"}, [(80, {"hostIP": "10.0.0.9"})], True),
        ({}, [(443, {})], True),
        ({}, [(81, {"hostIP": "10.0.0.9"})], False),
    ],
)
@pytest.mark.parametrize("existing", [False, True])
def test_ports_of_daemon_sets_are_taken_on_each_node(own, daemons, placed, existing, options):
    """Of a new node, and of an existing one where the DaemonSet's pod does not run yet; the pod has ports 80 and 81."""
    sets = tuple(a_daemon_set(f"d{n}", **listens(port, **more)) for n, (port, more) in enumerate(daemons))

    found = plan(
        some(1, "web", listens(80, 81, **own)),
        some(1, "other", listens(82)),
        nodes=at("n/a:4") if existing else ([], []),
        types=() if existing else (BIG,),
        daemon_sets=sets,
        options=options,
    )

    apps = "1 web, 1 other" if placed else "1 other; pending: 1 web"
    assert by_node(found) == f"{'node-n' if existing else 'z.large'}: {apps}"


@both_ways
def test_ports_of_a_daemon_set_are_taken_only_where_it_runs(options):
    """Of three DaemonSets one is for zone b, and one for zones c or a, where the node is."""
    sets = (
        a_daemon_set("everywhere", **listens(80)),
        a_daemon_set("elsewhere", **listens(81), **selects(zone="b")),
        a_daemon_set("here", **listens(82), **only(ZONE, "c", "a")),
    )
    waiting = [pod for port in (80, 81, 82, 83) for pod in some(1, f"p{port}", listens(port))]

    found = plan(waiting, nodes=at("n/a:4"), types=(), daemon_sets=sets, options=options)

    assert by_node(found) == "node-n: 1 p83, 1 p81; pending: 1 p82, 1 p80"


def test_plan_that_takes_the_port_of_a_daemon_set_is_rejected():
    """The plan that leaves it to the DaemonSet's pod is accepted by each other test."""
    found = plan(
        some(1, "web", listens(80)), nodes=at("n/a:4"), types=(), daemon_sets=(a_daemon_set("d", **listens(80)),)
    )
    greedy = replace(found.results, existing={"node-n": ("default/web0",)}, pod_errors={})

    defects = verify_strictly(found.snapshot, Catalogue({}), greedy, pods=pods_to_schedule(found.snapshot))

    assert [str(defect) for defect in defects] == [
        "node node-n: host port 80/TCP of pod default/web0 is taken by its daemons"
    ]


def test_ports_of_a_daemon_set_are_taken_only_on_types_that_run_it():
    """Pods with that port get small nodes, with space for one other pod each."""
    exporter = a_daemon_set("exporter", **listens(80), **selects(type="m.large"))

    found = plan(some(2, "listening", listens(80)), some(6, "web"), types=(LARGE, SMALL), daemon_sets=(exporter,))

    assert by_node(found) == "m.large: 4 web; m.small: 1 web, 1 listening; m.small: 1 web, 1 listening"
