"""The judge rejects every broken plan, the production check each that is certainly wrong; neither raises anything.

A random cluster has a right plan by construction: every pod goes where its rules allow it. Each mutation breaks that plan
in one way; each is tried on every cluster.
"""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from journeyman.core.api import labels
from journeyman.core.api.objects import NodeSelectorRequirement, Pod
from journeyman.core.api.resources import total_requests
from journeyman.core.catalogue import Catalogue
from journeyman.core.scheduling.verify import verify
from journeyman_simulator.judge import judge, verify_strictly
from tests.helpers.builders import (
    a_csi_node,
    a_daemon_set,
    a_node,
    a_node_class,
    a_pod,
    a_pool,
    a_running_claim,
    a_snapshot,
    a_storage_class,
    a_volume,
    a_volume_claim,
    ago,
    an_instance_type,
    merge,
)
from tests.helpers.plans import a_plan, a_planned_claim

SEEDS = range(4)
TYPES = tuple(
    an_instance_type(f"t{cpu}", cpu=cpu, memory_gib=4 * cpu, price=0.05 * cpu, zones=("a", "b"), spot=0.011 * cpu)
    for cpu in (4, 8)
)
TAINT = {"key": "gpu", "effect": "NoSchedule"}
TOLERATION = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
NODE = "node-n1"


# -- a cluster and its right plan --------------------------------------------------------------------------------------


def _selecting(app):
    return {"labelSelector": {"matchLabels": {"app": app}}}


def _spread(key, app):
    constraint = {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **_selecting(app)}
    return {"topologySpreadConstraints": [constraint]}


def _affine(kind, key, app):
    term = {"topologyKey": key, **_selecting(app)}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def _listening(cpu):
    container = {"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}], "resources": {"requests": {"cpu": cpu}}}
    return {"containers": [container]}


class Case:
    """A cluster, and a plan for it that can be changed."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.pods = {}
        claims = self._claims()
        self.results = a_plan(
            *claims, node_n1=[self._pod("existing", "plain"), self._pod("stateful", "plain", _using("data"))]
        )
        running = (a_pod("running", cpu="1", node=NODE, metadata={"labels": {"app": "db"}}),)
        storage = {
            "persistent_volume_claims": (
                a_volume_claim("data", volume="pv"),
                a_volume_claim("new"),
                a_volume_claim("third"),
            ),
            "persistent_volumes": (a_volume("pv", {labels.ZONE: ("a",)}),),
            "storage_classes": (a_storage_class(zones=("a", "b")),),
            "csi_nodes": (a_csi_node(NODE, ebs_csi_aws_com=1),),
        }
        self.snapshot = a_snapshot(
            node_pools=(_pool("default"), _pool("gpu", **_TAINTED), _pool("teams")),
            pods=(*self.pods.values(), *running),
            nodes=(a_node("n1"),),
            claims=(a_running_claim("n1"),),
            daemon_sets=(a_daemon_set("agent"),),
            **storage,
        )
        self.catalogue = Catalogue(dict.fromkeys(("default", "gpu", "teams"), TYPES))

    def _pod(self, name, app, spec=None, *, cpu=None):
        cpu = cpu or self.draw.choice(["100m", "250m", "500m"])
        self.pods[name] = a_pod(name, cpu=cpu, memory="256Mi", spec=spec or {}, metadata={"labels": {"app": app}})
        return self.pods[name]

    def _claims(self):
        """Claims by the rule that each is about; `names` are in the same order."""
        made = {
            "plain": ([self._pod(f"plain-{i}", "plain") for i in range(self.draw.randint(1, 4))], {}),
            "picky": ([self._pod("picky", "picky", {"nodeSelector": {labels.ZONE: "b"}})], {"zone": "b"}),
            "team": ([self._pod("team", "team", {"nodeSelector": {"team": "red"}})], {"team": "red", "pool": "teams"}),
            "gpu": ([self._pod("gpu", "gpu", TOLERATION)], {"pool": "gpu"}),
            "host-a": ([self._pod("host-0", "host", _spread(labels.HOSTNAME, "host"))], {}),
            "host-b": ([self._pod("host-1", "host", _spread(labels.HOSTNAME, "host"))], {}),
            "level-a": ([self._pod("level-0", "level", _spread(labels.ZONE, "level"))], {"zone": "a"}),
            "level-b": ([self._pod("level-1", "level", _spread(labels.ZONE, "level"))], {"zone": "b"}),
            "guest": ([self._pod("guest", "guest", _affine("podAffinity", labels.ZONE, "db"))], {"zone": "a"}),
            "shy": ([self._pod("shy", "shy", _affine("podAntiAffinity", labels.ZONE, "loud"))], {"zone": "a"}),
            "loud": ([self._pod("loud", "loud")], {"zone": "b"}),
            "port-a": ([self._pod("port-0", "port", _listening("100m"))], {}),
            "port-b": ([self._pod("port-1", "port", _listening("100m"))], {}),
            "volume": ([self._pod("volume", "volume", _using("new"))], {"zone": "a"}),
            "large": ([self._pod("large", "large", cpu="3500m")], {}),
        }
        self.names = tuple(made)
        return [a_planned_claim(*pods, types=TYPES, **pins) for pods, pins in made.values()]

    def defects(self, verifier):
        """What a verifier reports, in words."""
        found = verifier(self.snapshot, self.catalogue, self.results, pods=tuple(self.pods.values()))
        return tuple(map(str, found))

    def claim(self, name):
        """The claim for these pods."""
        return self.results.new_claims[self.names.index(name)]

    def edit(self, name, **changes):
        """Change one claim."""
        claims = list(self.results.new_claims)
        at = self.names.index(name)
        claims[at] = replace(claims[at], **changes)
        self.results = replace(self.results, new_claims=tuple(claims))

    def pin(self, name, key, *values):
        """Let a claim ask for other values of a label; for none of them if there are none."""
        kept = tuple(r for r in self.claim(name).requirements if r.key != key)
        wanted = (NodeSelectorRequirement(key=key, operator="In", values=values),) if values else ()
        self.edit(name, requirements=(*kept, *wanted))

    def join(self, name, *others):
        """Put the pods of other claims on one claim, which asks for enough; the others are not opened."""
        pods = [pod for n in (name, *others) for pod in self.claim(n).pods]
        requests = total_requests(self.pods[key.split("/")[1]] for key in pods)
        self.edit(name, pods=tuple(sorted(pods)), requests=requests)
        kept = [(n, c) for n, c in zip(self.names, self.results.new_claims, strict=True) if n not in others]
        self.names = tuple(n for n, _ in kept)
        self.results = replace(self.results, new_claims=tuple(c for _, c in kept))

    def move_to_node(self, *names):
        """Put the pods of these claims on the node that is there."""
        pods = tuple(pod for name in names for pod in self.claim(name).pods)
        kept = [(n, c) for n, c in zip(self.names, self.results.new_claims, strict=True) if n not in names]
        self.names = tuple(n for n, _ in kept)
        existing = {NODE: (*self.results.existing[NODE], *pods)}
        self.results = replace(self.results, new_claims=tuple(c for _, c in kept), existing=existing)

    def change_pod(self, name, spec):
        """Another spec for a pod."""
        body = merge(msgspec.to_builtins(self.pods[name]), {"spec": spec})
        self.pods[name] = msgspec.convert(body, Pod)
        self.cluster(pods=(*self.pods.values(), *(p for p in self.snapshot.pods if p.spec.node_name)))

    def change_node(self, **changes):
        """The node that is there, otherwise."""
        self.cluster(nodes=(a_node("n1", **changes),))

    def cluster(self, **changes):
        """Change the snapshot."""
        self.snapshot = replace(self.snapshot, **changes)

    def plan(self, **changes):
        """Change the plan."""
        self.results = replace(self.results, **changes)

    def sell_out(self, zone):
        """Let nothing be available in a zone."""
        types = [replace(t, offerings=tuple(replace(o, available=o.zone != zone) for o in t.offerings)) for t in TYPES]
        self.catalogue = Catalogue(dict.fromkeys(("default", "gpu", "teams"), tuple(types)))

    def restrict_to_large_type(self, name):
        """Let a claim have the large type only, at its price."""
        self.pin(name, labels.INSTANCE_TYPE, "t8")
        price = next(o.price for o in TYPES[1].offerings if o.capacity_type == labels.SPOT)
        self.edit(name, instance_types=("t8",), offering=("t8", "a", labels.SPOT), price=price)

    def run_beside_a_guard(self, name, other):
        """Run a pod with anti-affinity to these claim's pods in its zone; the other claim is elsewhere."""
        spec = _affine("podAntiAffinity", labels.ZONE, name)
        guard = a_pod("guard", cpu="100m", node=NODE, spec=spec, metadata={"labels": {"app": "guard"}})
        self.cluster(pods=(*self.snapshot.pods, guard))
        self.pin(name, labels.ZONE, "a")
        self.pin(other, labels.ZONE, "b")


def _using(claim):
    return {"volumes": [{"name": claim, "persistentVolumeClaim": {"claimName": claim}}]}


_TAINTED = {"template": {"spec": {"taints": [TAINT]}}}


def _pool(name, **spec):
    """A NodePool that wants two instance types to choose from, and may grow to a limit."""
    types = {"key": labels.INSTANCE_TYPE, "operator": "Exists", "minValues": 2}
    team = [{"key": "team", "operator": "In", "values": ["red", "blue"]}] if name == "teams" else []
    base = {"template": {"spec": {"requirements": [types, *team]}}, "limits": {"cpu": "160", "nodes": "40"}}
    return a_pool(name, spec=merge(base, spec))


# -- ways to break it --------------------------------------------------------------------------------------------------


def _default_pool_with(**spec):
    """The NodePools, the default one with this spec."""
    return {"node_pools": (_pool("default", **spec), _pool("gpu", **_TAINTED), _pool("teams"))}


BREAKS = {
    "pod on two nodes": lambda case: case.edit("picky", pods=("default/picky", "default/team")),
    "pod forgotten": lambda case: case.edit("level-a", pods=("default/ghost",)),
    "pod that is nowhere": lambda case: case.plan(new_claims=case.results.new_claims[1:]),
    "NodeClaim without pods": lambda case: case.plan(
        new_claims=(*case.results.new_claims, replace(case.claim("loud"), pods=()))
    ),
    "price": lambda case: case.edit("plain", price=case.claim("plain").price - 0.01),
    "type less than can be launched": lambda case: case.edit(
        "plain", instance_types=case.claim("plain").instance_types[:-1]
    ),
    "type that is not sold": lambda case: case.edit(
        "plain", instance_types=(*case.claim("plain").instance_types, "t1024")
    ),
    "offering that there is not": lambda case: case.edit(
        "plain", offering=(case.claim("plain").offering[0], "z", labels.SPOT)
    ),
    "requests without a pod": lambda case: case.edit("plain", requests={}),
    "NodePool that there is not": lambda case: case.edit("plain", node_pool="gone"),
    "NodePool whose taint the pods do not tolerate": lambda case: case.edit("plain", node_pool="gpu"),
    "static NodePool": lambda case: case.cluster(
        node_pools=(_pool("default"), a_pool("gpu", spec={"replicas": 1}), _pool("teams"))
    ),
    "NodeClass that is not ready": lambda case: case.cluster(node_classes=(a_node_class(ready=False),)),
    "fewer types than minValues": lambda case: case.restrict_to_large_type("plain"),
    "zone that a pod does not want": lambda case: case.pin("picky", labels.ZONE, "a"),
    "zone left open that a pod wants": lambda case: case.pin("picky", labels.ZONE),
    "label left open that a pod wants": lambda case: case.pin("team", "team", "red", "blue"),
    "label of the NodePool left out": lambda case: case.pin("team", "team"),
    "label that the NodePool does not have": lambda case: case.edit("team", node_pool="default"),
    "too many pods on the smallest type": lambda case: case.join("large", "plain", "loud", "picky"),
    "too little beside a daemon": lambda case: case.cluster(daemon_sets=(a_daemon_set("agent", cpu="500m"),)),
    "more than the limit": lambda case: case.cluster(**_default_pool_with(limits={"cpu": "20"})),
    "more nodes than the limit": lambda case: case.cluster(**_default_pool_with(limits={"nodes": "5"})),
    "offering sold out meanwhile": lambda case: case.sell_out("b"),
    "reservation given twice": lambda case: [case.edit(name, reservations=("cr-1",)) for name in ("plain", "loud")],
    "spread pods on one node": lambda case: case.join("host-a", "host-b"),
    "spread pods in one zone": lambda case: case.pin("level-a", labels.ZONE, "b"),
    "spread zone left open": lambda case: case.pin("level-a", labels.ZONE),
    "guest in another zone": lambda case: case.pin("guest", labels.ZONE, "b"),
    "guest who may come to be elsewhere": lambda case: case.pin("guest", labels.ZONE),
    "guest whose host goes": lambda case: case.cluster(pods=tuple(case.pods.values())),
    "shy pod beside a loud one": lambda case: case.pin("shy", labels.ZONE, "b"),
    "loud pod that may come to be beside a shy one": lambda case: case.pin("loud", labels.ZONE),
    "loud pod that a running one repels": lambda case: case.run_beside_a_guard("loud", "shy"),
    "one port taken twice": lambda case: case.join("port-a", "port-b"),
    "port that a daemon has": lambda case: case.cluster(
        daemon_sets=(a_daemon_set("agent", cpu="100m", **_listening("100m")),)
    ),
    "volume out of reach": lambda case: case.cluster(storage_classes=(a_storage_class(zones=("b",)),)),
    "volume that there is not": lambda case: case.cluster(persistent_volume_claims=()),
    "volume too many for the node": lambda case: case.move_to_node("volume"),
    "pod that asks for devices": lambda case: case.change_pod("loud", {"resourceClaims": [{"name": "gpu"}]}),
    "too many pods on the node": lambda case: case.move_to_node("large"),
    "node that is not there": lambda case: case.plan(existing={"node-x": case.results.existing[NODE]}),
    "node that leaves": lambda case: case.change_node(deleting=ago(minutes=1)),
    "cordoned node": lambda case: case.change_node(spec={"unschedulable": True}),
    "tainted node": lambda case: case.change_node(spec={"taints": [TAINT]}),
    "node of another zone": lambda case: case.move_to_node("picky"),
    "node whose size cannot be read": lambda case: case.change_node(status={"allocatable": {"cpu": "plenty"}}),
}
"""Ways to break a plan, each of which the judge reports."""

LEFT_TO_THE_JUDGE = {
    "price",
    "offering that there is not",
    "pod that asks for devices",
    "type less than can be launched",
}
"""What the production check does not look at: prices, and devices."""


@pytest.mark.parametrize("seed", SEEDS)
def test_unchanged_plans_pass_verification(seed):
    """Before the other tests break them."""
    assert Case(seed).defects(verify_strictly) == ()


@pytest.mark.parametrize("verifier", [judge, verify])
@pytest.mark.parametrize("name", BREAKS)
def test_broken_plan_never_passes_verification(name, verifier):
    """Each way to break a plan is reported, with the pod, node or NodePool concerned."""
    for seed in SEEDS:
        case = Case(seed)
        BREAKS[name](case)
        found = case.defects(verifier)
        if verifier is verify and name in LEFT_TO_THE_JUDGE:
            assert found == ()
            continue
        assert found, f"seed {seed}"
        assert all(
            "default/" in text or "NodePool" in text or "node " in text or "reservation" in text for text in found
        )


# -- odd input ---------------------------------------------------------------------------------------------------------

ODD = st.sampled_from(
    ["", "-1", "0", "x", "1e999", "९", "²", "9" * 5000, "a/b/c", "\x00", "default/plain-0", "In", "*"]
)
OPERATORS = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Gte", "Lte", "", "Like"])
KEYS = st.sampled_from(
    [labels.ZONE, labels.HOSTNAME, labels.INSTANCE_TYPE, labels.NODEPOOL, "team", "", "beta.kubernetes.io/arch"]
)
NUMBERS = st.integers(-3, 3)


def expressions():
    """Expressions that may make no sense."""
    return st.fixed_dictionaries({"key": KEYS, "operator": OPERATORS, "values": st.lists(ODD, max_size=2)})


def selectors():
    """Label selectors, or none, that may make no sense."""
    return st.none() | st.fixed_dictionaries(
        {},
        optional={
            "matchLabels": st.dictionaries(KEYS, ODD, max_size=2),
            "matchExpressions": st.lists(expressions(), max_size=2),
        },
    )


def terms():
    """Affinity terms that may make no sense."""
    return st.fixed_dictionaries(
        {"topologyKey": KEYS, "labelSelector": selectors()},
        optional={
            "namespaces": st.lists(ODD, max_size=2),
            "namespaceSelector": selectors(),
            "matchLabelKeys": st.lists(KEYS, max_size=2),
        },
    )


def specs():
    """Pod specs that an API server would not let in."""
    node_terms = st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "matchExpressions": st.lists(expressions(), max_size=2),
                "matchFields": st.lists(expressions(), max_size=1),
            },
        ),
        max_size=2,
    )
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    constraint = {
        "maxSkew": NUMBERS,
        "topologyKey": KEYS,
        "labelSelector": selectors(),
        "whenUnsatisfiable": st.just("DoNotSchedule"),
    }
    policies = {
        "minDomains": NUMBERS,
        "nodeAffinityPolicy": ODD,
        "nodeTaintsPolicy": ODD,
        "matchLabelKeys": st.lists(KEYS, max_size=2),
    }
    port = st.fixed_dictionaries({"hostPort": NUMBERS, "hostIP": ODD, "protocol": ODD})
    requests = st.dictionaries(st.sampled_from(["cpu", "memory", "x/y", ""]), ODD, max_size=2)
    container = st.fixed_dictionaries(
        {"name": ODD, "ports": st.lists(port, max_size=1), "resources": st.fixed_dictionaries({"requests": requests})}
    )
    volume = st.fixed_dictionaries(
        {"name": ODD},
        optional={"persistentVolumeClaim": st.fixed_dictionaries({"claimName": ODD}), "ephemeral": st.just({})},
    )
    toleration = st.fixed_dictionaries(
        {"key": KEYS, "operator": st.sampled_from(["", "Exists", "Gt", "Lt", "?"]), "value": ODD, "effect": ODD}
    )
    return st.fixed_dictionaries(
        {"containers": st.lists(container, max_size=1)},
        optional={
            "nodeSelector": st.dictionaries(KEYS, ODD, max_size=2),
            "tolerations": st.lists(toleration, max_size=2),
            "volumes": st.lists(volume, max_size=2),
            "topologySpreadConstraints": st.lists(st.fixed_dictionaries(constraint, optional=policies), max_size=2),
            "affinity": st.fixed_dictionaries(
                {},
                optional={
                    "nodeAffinity": st.fixed_dictionaries(
                        {required: st.fixed_dictionaries({"nodeSelectorTerms": node_terms})}
                    ),
                    "podAffinity": st.fixed_dictionaries({required: st.lists(terms(), max_size=2)}),
                    "podAntiAffinity": st.fixed_dictionaries({required: st.lists(terms(), max_size=2)}),
                },
            ),
        },
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs(), daemon=specs(), running=specs(), taint=ODD, size=ODD, requirement=expressions())
def test_invalid_objects_are_reported_and_raise_nothing(spec, daemon, running, taint, size, requirement):
    """Whatever a pod, DaemonSet, node or claim contains; the valid part of the plan is still verified."""
    case = Case(0)
    for name in ("plain-0", "existing", "host-0", "volume"):
        case.change_pod(name, spec)
    case.change_node(
        spec={"taints": [{"key": taint, "value": taint, "effect": "NoSchedule"}]}, status={"allocatable": {"cpu": size}}
    )
    guard = a_pod("guard", node=NODE, spec={**running, "nodeName": NODE})
    case.snapshot = replace(
        case.snapshot, pods=(*case.snapshot.pods, guard), daemon_sets=(a_daemon_set("odd", **daemon),)
    )
    odd = msgspec.convert(requirement, NodeSelectorRequirement)
    case.edit("plain", requirements=(*case.claim("plain").requirements, odd), price=float("inf"))

    found = case.defects(judge)
    case.defects(verify)

    assert any("says inf per hour" in text or "nothing can be launched" in text for text in found)
