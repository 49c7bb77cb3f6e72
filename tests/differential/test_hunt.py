"""The hunt's examples: made smaller, and still clusters that an API server would accept."""

from tests.differential.compare import Finding, Ours
from tests.differential.draw.words import ZONE, require
from tests.differential.hunt import Hunt
from tests.differential.test_accepted_differences import REQUIRED, a_pool, a_type, pods, scenario


class NodeAffinityHunt(Hunt):
    """Finds fault with every scenario in which a pod has required node affinity."""

    def _found(self, asked):
        specs = [o["spec"] for o in asked["objects"] if o["kind"] == "Pod"]
        shows = any(REQUIRED in ((spec.get("affinity") or {}).get("nodeAffinity") or {}) for spec in specs)
        return [Finding(kind="dearer", text="node affinity")] if shows else []


def test_smallest_example_has_no_invalid_pods():
    """A required node affinity without terms is smaller, but no API server accepts it."""
    in_zone_a = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [require(ZONE, "In", "a")]}]}}
    asked = scenario([a_type("m", cpu=4, price=0.2)], a_pool(), *pods(3, affinity={"nodeAffinity": in_zone_a}))
    hunt = NodeAffinityHunt(karpenter=None)
    hunt.look(asked)

    small, _ = hunt.smallest(("dearer", ""), tries=300)

    (pod,) = (o for o in small["objects"] if o["kind"] == "Pod")
    assert len(pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]) == 1
    assert all(error.kind != "invalid" for error in Ours(small).results.pod_errors.values())
