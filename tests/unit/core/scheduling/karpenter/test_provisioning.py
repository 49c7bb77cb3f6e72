"""Karpenter's provisioning suite, on its fake cloud's instance types."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.scheduling.results import MinValuesPolicy, Options, PreferencePolicy
from tests.helpers.builders import (
    CLASS_REF,
    NOW,
    a_daemon_set,
    a_node,
    a_pod,
    a_running_claim,
    a_storage_class,
    a_volume,
    a_volume_claim,
    stamp,
)
from tests.helpers.karpenter_suite import (
    FAKE_TYPES,
    GPU_A,
    GPU_B,
    ZONES,
    fake_type,
    pool,
    preferred,
    requesting,
    required,
    requirement,
    schedule,
    tiny,
)

TYPE, ZONE, ARCH, OS = labels.INSTANCE_TYPE, labels.ZONE, labels.ARCH, labels.OS
SMALL, DEFAULT = "small-instance-type", "default-instance-type"


def by_selector(key, value):
    return {"nodeSelector": {key: value}}


def by_affinity(key, value):
    return required([requirement(key, "In", value)])


# -- which nodes


@pytest.mark.parametrize("select", [by_selector, by_affinity])
def test_pod_selects_labels_that_a_new_node_may_have(select):
    """By NodePool, zone, instance type, architecture and operating system; an unknown value fits nowhere."""
    known = {labels.NODEPOOL: "default", ZONE: ZONES[0], TYPE: DEFAULT, ARCH: "arm64", OS: "linux"}
    unknown = {**dict.fromkeys((*known, labels.CAPACITY_TYPE), "unknown"), "foo": "bar"}
    good = [tiny(f"good-{n}", spec=select(key, value)) for n, (key, value) in enumerate(known.items())]
    bad = [tiny(f"bad-{n}", spec=select(key, value)) for n, (key, value) in enumerate(unknown.items())]

    plan = schedule(*good, *bad)

    assert set(plan.results.pod_errors) == {pod.key for pod in bad}


@pytest.mark.parametrize(("count", "nodes"), [(1, 1), (100, 20)])
def test_pods_fill_nodes_up_to_their_maximum_of_pods(count, nodes):
    """The small type runs five pods."""
    plan = schedule(*(tiny(f"p{n}") for n in range(count)))

    assert not plan.results.pod_errors
    assert [claim.offering.instance_type for claim in plan.results.new_claims] == [SMALL] * nodes


@pytest.mark.parametrize(
    ("resource", "name"), [(GPU_A, "gpu-vendor-instance-type"), (GPU_B, "gpu-vendor-b-instance-type")]
)
def test_pod_with_a_gpu_gets_the_type_that_has_it(resource, name):
    """The NodeClaim lists no other type."""
    plan = schedule(tiny("p", spec=requesting({resource: "1"}, **{resource: "1"})))

    assert plan.node_of("p").instance_types == (name,)


def test_each_pod_gets_a_node_of_a_type_for_one_pod():
    """The NodePool allows only that type."""
    single = pool(requirements=[requirement(TYPE, "In", "single-pod-instance-type")])

    plan = schedule(*(tiny(f"p{n}") for n in range(3)), node_pools=(single,))

    assert [len(claim.pods) for claim in plan.results.new_claims] == [1, 1, 1]


def test_deleting_nodepool_launches_nothing():
    """Its pods are unschedulable."""
    leaving = pool()
    leaving = type(leaving).model_validate(
        {**leaving.to_wire(), "metadata": {"name": "default", "uid": "u", "deletionTimestamp": stamp(NOW)}}
    )

    plan = schedule(tiny("p"), node_pools=(leaving,))

    assert set(plan.results.pod_errors) == {"default/p"}


THREE = (
    fake_type("bigger", cpu=12, memory="6Gi"),
    fake_type("right", cpu=11, memory="5Gi"),
    fake_type("smaller", cpu=10, memory="4Gi"),
)
SIDECAR = {"cpu": "4.9", "memory": "2.9Gi", "sidecar": "yes"}


@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        (requesting({"cpu": "6", "memory": "2Gi"}, init=({"cpu": "10", "memory": "4Gi"}, SIDECAR)), "right"),
        (requesting({"cpu": "6", "memory": "2Gi"}, init=(SIDECAR, {"cpu": "5", "memory": "1Gi"})), "right"),
        (requesting({"cpu": "5", "memory": "1Gi"}, init=(SIDECAR, {"cpu": "6", "memory": "2Gi"})), "right"),
        (
            {
                **requesting(
                    {"cpu": "5", "memory": "1Gi"},
                    init=({"cpu": "6", "memory": "2Gi"}, {"cpu": "4", "memory": "2Gi", "sidecar": "yes"}),
                ),
                "resources": {"requests": {"cpu": "9.9", "memory": "3.9Gi"}},
            },
            "smaller",
        ),
    ],
)
def test_sidecars_and_pod_level_requests_decide_the_size(spec, chosen):
    """A little less would fit on the next smaller type."""
    plan = schedule(tiny("p", spec=spec), types=THREE)

    assert plan.node_of("p").offering.instance_type == chosen


# -- limits


# -- DaemonSets


def daemon(name="agent", *, spec=None, **requests):
    """A DaemonSet that tolerates nothing."""
    return a_daemon_set(
        name, **{"tolerations": [], **requesting(requests or {"cpu": "2", "memory": "2Gi"}), **(spec or {})}
    )


MONITORED = {"labels": {"purpose": "monitoring"}}
TAINT = {"key": "foo", "value": "bar", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("daemon_spec", "template", "chosen"),
    [
        ({}, {"startupTaints": [{"key": "foo.com/taint", "effect": "NoSchedule"}]}, DEFAULT),
        ({}, {"taints": [TAINT]}, SMALL),
        ({"nodeSelector": {"node": "invalid"}}, {}, SMALL),
        (required([requirement(TYPE, "In", "non-existent-instance-type")]), {}, SMALL),
        ({"nodeSelector": {"purpose": "monitoring"}}, MONITORED, DEFAULT),
        (required([requirement("foo", "NotIn", "bar")]), {}, DEFAULT),
        (
            required([requirement("foo", "In", "voo")], [requirement("foo", "In", "bar")]),
            {"labels": {"foo": "bar"}},
            DEFAULT,
        ),
        (preferred((1, [requirement("node", "In", "invalid")])), {}, DEFAULT),
        ({}, {"taints": [{"key": "test", "effect": "PreferNoSchedule"}]}, DEFAULT),
        (requesting({"cpu": "1", "memory": "1Gi"}, init=({"cpu": "3", "memory": "3Gi"},)), {}, DEFAULT),
    ],
)
def test_daemon_set_that_runs_on_the_node_makes_it_larger(daemon_spec, template, chosen):
    """With the DaemonSet's pod, the pod needs the type of 4 CPUs; without it, 2 CPUs are enough."""
    pod = (
        a_pod("p", spec={"tolerations": [{"operator": "Exists"}]})
        if "taints" in template
        else a_pod("p", cpu="900m", memory="900Mi")
    )

    plan = schedule(pod, node_pools=(pool(**template),), daemon_sets=(daemon(spec=daemon_spec),))

    assert plan.node_of("p").offering.instance_type == chosen


def test_daemon_set_without_requests_needs_a_pod_of_its_node():
    """The type runs five pods, one of them the DaemonSet's."""
    plan = schedule(*(tiny(f"p{n}") for n in range(5)), daemon_sets=(a_daemon_set("agent", **requesting({})),))

    assert sorted(len(claim.pods) for claim in plan.results.new_claims) in ([1, 4], [2, 3])


# -- NodeClaims


@pytest.mark.parametrize(
    ("wanted", "types"),
    [
        ([], {t.name for t in FAKE_TYPES}),
        (
            [
                requirement("custom-requirement-key", "In", "value"),
                requirement("custom-requirement-key2", "In", "value"),
            ],
            {t.name for t in FAKE_TYPES},
        ),
        ([requirement(ARCH, "In", "arm64")], {"arm-instance-type"}),
        ([requirement(OS, "In", "ios")], {"arm-instance-type"}),
    ],
)
def test_nodeclaim_requires_what_its_nodepool_requires(wanted, types):
    """It lists the instance types that meet that."""
    plan = schedule(tiny("p"), node_pools=(pool(requirements=wanted),))

    claim = plan.node_of("p")
    found = {r.key: r.values for r in claim.requirements}
    assert set(claim.instance_types) == types
    assert claim.node_pool == "default"
    assert {r["key"]: tuple(r["values"]) for r in wanted}.items() <= found.items()


# -- preferences


@pytest.mark.parametrize(
    ("spec", "template", "zone"),
    [
        (required([requirement(ZONE, "In", "invalid")]), {"requirements": [requirement(ZONE, "In", ZONES[0])]}, None),
        (required(*([requirement(ZONE, "In", z)] for z in ("invalid", "invalid", ZONES[0], ZONES[1]))), {}, ZONES[0]),
        (
            preferred((1, [requirement(ZONE, "In", "invalid")]), (1, [requirement(TYPE, "In", "invalid")])),
            {"requirements": [requirement(ZONE, "In", ZONES[2])]},
            ZONES[2],
        ),
        (
            preferred((1, [requirement(ZONE, "In", "invalid")]), (1, [requirement(TYPE, "In", "invalid")])),
            {
                "requirements": [requirement(ZONE, "In", ZONES[2])],
                "taints": [{"key": "foo", "value": "bar", "effect": "PreferNoSchedule"}],
            },
            ZONES[2],
        ),
        (
            preferred(
                (100, [requirement(TYPE, "In", ZONES[2])]),
                (50, [requirement(ZONE, "In", ZONES[1])]),
                (1, [requirement(ZONE, "In", ZONES[0])]),
            ),
            {"requirements": [requirement(ZONE, "In", *ZONES[:2])]},
            ZONES[1],
        ),
    ],
)
def test_preferences_and_alternatives_are_tried_in_order(spec, template, zone):
    """None: the pod has no place, because its only term stays required."""
    plan = schedule(tiny("p", spec=spec), node_pools=(pool(**template),))

    assert (plan.label_of("p", ZONE) if plan.node_of("p") else None) == zone


@pytest.mark.parametrize("key", [ZONE, labels.HOSTNAME])
def test_preference_that_no_node_meets_costs_no_node(key):
    """The pod joins the other one."""
    plan = schedule(a_pod("a", cpu="2"), a_pod("b", cpu="1", spec=preferred((1, [requirement(key, "In", "value-1")]))))

    assert plan.node_of("a") is plan.node_of("b")


IGNORE = Options(preferences=PreferencePolicy.IGNORE)


def weighted(kind, key, app):
    """A spec with one preferred term for or against an app's pods."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {
        "affinity": {
            kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
        }
    }


@pytest.mark.parametrize(
    "preference",
    [preferred((1, [requirement(ZONE, "In", ZONES[1])])), weighted("podAffinity", ZONE, "bar")],
    ids=["node affinity", "pod affinity"],
)
def test_ignored_affinity_lets_a_pod_join_the_cheapest_plan(preference):
    """Zone 1 has space on its node; the nodes of zone 2, which the pod prefers, are full."""
    first = a_pod("first", cpu="2", spec=by_selector(ZONE, ZONES[0]))
    others = [
        a_pod(f"other{n}", cpu="3", spec=by_selector(ZONE, ZONES[1]), metadata={"labels": {"app": "bar"}})
        for n in range(2)
    ]
    preferring = a_pod("p", cpu="1", spec=preference)

    ignored, respected = schedule(first, *others, preferring, options=IGNORE), schedule(first, *others, preferring)

    assert ignored.node_of("p") is ignored.node_of("first")
    assert respected.label_of("p", ZONE) == ZONES[1]


# -- several NodePools


# -- minValues

TWO = tuple(
    fake_type(f"instance-type-{n}", arch="arm64", os=("linux",), offerings=((ZONES[n - 1], labels.SPOT),), price=0.52)
    for n in (1, 2)
)
NAMES = requirement(TYPE, "In", "instance-type-1", "instance-type-2", "instance-type-3")
BEST_EFFORT = Options(min_values=MinValuesPolicy.BEST_EFFORT)


@pytest.mark.parametrize(
    ("wanted", "options", "relaxed"),
    [
        ([{**NAMES, "minValues": 3}, requirement(ZONE, "In", *ZONES, minValues=3)], BEST_EFFORT, True),
        ([{**NAMES, "minValues": 3}], Options(), None),
        ([{**NAMES, "minValues": 3}], BEST_EFFORT, True),
        pytest.param([{**NAMES, "minValues": 2}], BEST_EFFORT, False),
        ([requirement(ZONE, "In", *ZONES, minValues=3)], Options(), None),
        ([requirement(ZONE, "In", *ZONES, minValues=3)], BEST_EFFORT, True),
    ],
)
def test_min_values_of_types_and_zones_are_strict_or_relaxed(wanted, options, relaxed):
    """Two types exist, each in a zone of its own. None: the pod has no place."""
    pod = a_pod("p", cpu="0.9", memory="0.9Gi")

    claim = schedule(pod, types=TWO, node_pools=(pool(requirements=wanted),), options=options).node_of("p")

    assert (claim.min_values_relaxed if claim else None) == relaxed
    if claim:
        assert {r.min_values for r in claim.requirements if r.key in {each["key"] for each in wanted}} == {2}


@pytest.mark.parametrize("other", [NAMES, {**NAMES, "minValues": 3}])
def test_min_values_are_relaxed_before_a_lighter_nodepool_is_used(other):
    """The lighter NodePool may have minValues or none."""
    pools = (
        pool("heavy", weight=100, requirements=[{**NAMES, "minValues": 3}]),
        pool("light", weight=10, requirements=[other]),
    )

    claim = schedule(a_pod("p", cpu="0.9"), types=TWO, node_pools=pools, options=BEST_EFFORT).node_of("p")

    assert (claim.node_pool, claim.min_values_relaxed) == ("heavy", True)


@pytest.mark.parametrize(
    "key", [f"{sub}{domain}/test" for sub in ("", "subdomain.") for domain in ("kubernetes.io", "k8s.io")]
)
def test_nodepool_may_set_labels_of_kubernetes_domains(key):
    """The pod selects it, and the NodeClaim has it."""
    pod = tiny("p", spec=required([requirement(key, "In", "test-value")]))

    plan = schedule(pod, node_pools=(pool(labels={key: "test-value"}),))

    assert plan.manifest_of("p")["metadata"]["labels"][key] == "test-value"


def test_nodeclaim_has_what_its_nodepool_states_and_no_more():
    """A custom requirement gives a label, a well-known one does not; an unset period stays unset."""
    wanted = [requirement("foo", "In", "bar"), requirement(labels.WINDOWS_BUILD, "NotIn", "test-value")]

    manifest = schedule(tiny("p"), node_pools=(pool(requirements=wanted),)).manifest_of("p")

    assert manifest["metadata"]["labels"]["foo"] == "bar"
    assert labels.WINDOWS_BUILD not in manifest["metadata"]["labels"]
    assert manifest["spec"]["nodeClassRef"] == CLASS_REF
    assert "terminationGracePeriod" not in manifest["spec"]


def test_pods_of_a_deleting_node_share_the_new_node_with_pending_pods():
    """The deleting node takes none of them."""
    node, claim = a_node(deleting=NOW), a_running_claim(deleting=NOW)
    owner = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r"}]}
    running = [a_pod(f"old{n}", cpu="100m", memory="1Mi", node="node-default-1", metadata=owner) for n in range(3)]

    plan = schedule(*running, tiny("p"), tiny("q"), nodes=(node,), claims=(claim,))

    assert [len(new.pods) for new in plan.results.new_claims] == [5]
    assert plan.results.existing == {}


# -- volumes

ZONAL = a_storage_class(zones=ZONES[1:])
LOCAL = {"spec": {"local": {"path": "/d"}, "csi": None}}
HOST_PATH = {"spec": {"hostPath": {"path": "/d"}, "csi": None}}


def with_claim(name, claim):
    """A pod with a PersistentVolumeClaim."""
    return tiny(name, spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]})


def with_ephemeral(name):
    """A pod with a generic ephemeral volume, whose claim is `<pod>-data`."""
    template = {"spec": {"storageClassName": "gp3"}}
    return tiny(name, spec={"volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]})


def within(pod, *zones):
    """The pod with a required node affinity for these zones."""
    affinity = msgspec.convert(required([requirement(ZONE, "In", *zones)]), type(pod.spec)).affinity
    return replace(pod, spec=replace(pod.spec, affinity=affinity))


@pytest.mark.parametrize("ephemeral", [False, True])
@pytest.mark.parametrize(
    ("bound", "zones", "expected"),
    [
        (False, (ZONES[0], ZONES[2]), ZONES[2]),
        (False, (ZONES[0],), None),
        (True, ZONES, ZONES[2]),
        (True, (ZONES[0],), None),
    ],
)
def test_volume_and_pod_must_share_a_zone(ephemeral, bound, zones, expected):
    """A bound volume is in zone 3; the StorageClass creates volumes in zones 2 and 3. None: the pod has no place."""
    name = "p-data" if ephemeral else "data"
    owner = {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}]}
    claim = a_volume_claim(name, volume="pv" if bound else "", metadata=owner if ephemeral else {})
    pod = within(with_ephemeral("p") if ephemeral else with_claim("p", name), *zones)

    plan = schedule(
        pod,
        persistent_volume_claims=(claim,),
        persistent_volumes=(a_volume("pv", {ZONE: (ZONES[2],)}),),
        storage_classes=(ZONAL,),
    )

    assert (plan.label_of("p", ZONE) if plan.node_of("p") else None) == expected


@pytest.mark.parametrize("storage_class", ["", "missing-storage-class"])
def test_bound_claim_needs_no_storage_class(storage_class):
    """Its volume exists."""
    claim = a_volume_claim("data", volume="pv", storage_class=storage_class)

    plan = schedule(with_claim("p", "data"), persistent_volume_claims=(claim,), persistent_volumes=(a_volume("pv"),))

    assert plan.node_of("p") is not None


@pytest.mark.parametrize(
    "claims",
    [
        (),
        (a_volume_claim("data", storage_class="invalid-storage-class"),),
        (a_volume_claim("data", spec={"volumeName": "invalid-volume-name"}),),
    ],
    ids=["claim", "StorageClass", "volume"],
)
def test_pod_with_an_invalid_volume_affects_no_other(claims):
    """Only that pod has no place."""
    plan = schedule(with_claim("bad", "data"), tiny("good"), persistent_volume_claims=claims)

    assert plan.node_of("good") is not None
    assert set(plan.results.pod_errors) == {"default/bad"}


@pytest.mark.parametrize("ephemeral", [False, True])
@pytest.mark.parametrize(("source", "placed"), [(LOCAL, True), (HOST_PATH, True), ({}, False)])
def test_only_local_volumes_let_their_pod_leave_the_host(source, placed, ephemeral):
    """A CSI volume that is tied to a host cannot be attached to a new node."""
    name = "p-data" if ephemeral else "data"
    owner = {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}]}
    claim = a_volume_claim(name, volume="pv", metadata=owner if ephemeral else {})
    volume = a_volume("pv", {labels.HOSTNAME: ("some-node",)}, **source)
    pod = with_ephemeral("p") if ephemeral else with_claim("p", "data")

    plan = schedule(pod, persistent_volume_claims=(claim,), persistent_volumes=(volume,), storage_classes=(ZONAL,))

    assert (plan.node_of("p") is not None) is placed


def test_each_alternative_of_a_pod_keeps_the_zone_of_its_volume():
    """The first alternative is impossible, the second says nothing of zones."""
    claim = a_volume_claim("data", volume="pv")
    terms = required(
        [requirement("example.com/label", "In", "unsupported")],
        [requirement(labels.CAPACITY_TYPE, "In", labels.ON_DEMAND)],
    )
    pod = tiny("p", spec={"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}], **terms})

    plan = schedule(pod, persistent_volume_claims=(claim,), persistent_volumes=(a_volume("pv", {ZONE: (ZONES[2],)}),))

    assert plan.label_of("p", ZONE) == ZONES[2]
