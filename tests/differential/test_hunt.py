"""`hunt` reduces its examples, and an API server would still accept them."""

from tests.differential.compare import Finding, OurSolution
from tests.differential.draw.words import ZONE, require
from tests.differential.hunt import Hunt
from tests.differential.test_accepted_differences import REQUIRED, a_pool, a_scenario, a_type, pods


class NodeAffinityHunt(Hunt):
    """A hunt with a finding in each scenario in which a pod has required node affinity."""

    def _findings(self, scenario):
        specs = [o["spec"] for o in scenario["objects"] if o["kind"] == "Pod"]
        required = any(REQUIRED in ((spec.get("affinity") or {}).get("nodeAffinity") or {}) for spec in specs)
        return [Finding(kind="dearer", text="node affinity")] if required else []


def test_reduced_example_has_no_invalid_pods():
    """Required node affinity without terms would be smaller, but the API server rejects it."""
    in_zone_a = {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [require(ZONE, "In", "a")]}]}}
    drawn = a_scenario([a_type("m", cpu=4, price=0.2)], a_pool(), *pods(3, affinity={"nodeAffinity": in_zone_a}))
    hunt = NodeAffinityHunt(karpenter=None)
    hunt.compare(drawn)

    small, _ = hunt.reduced_example(("dearer", ""), tries=300)

    (pod,) = (o for o in small["objects"] if o["kind"] == "Pod")
    assert len(pod["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]) == 1
    assert all(error.kind != "invalid" for error in OurSolution(small).results.pod_errors.values())
