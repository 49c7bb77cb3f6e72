"""Pods whose in-place resize the kubelet has not completed."""

from __future__ import annotations

from typing import Final

from tests.differential.draw.words import JSONDict

GROWTHS: Final = ("growing", "deferred")
STAGES: Final = ("shrinking", *GROWTHS, "infeasible")
LEVELS: Final = ("container",) * 8 + ("sidecar",) * 4 + ("pod",)  # Karpenter ignores those of the pod level
INFEASIBLE_CPUS: Final = "64"
_REASONS: Final = {"deferred": "Deferred", "infeasible": "Infeasible"}


def resized(pod: JSONDict, stage: str, level: str) -> JSONDict:
    """Return a running pod of one container in a stage of a resize, of its container, of a sidecar, or at the pod level.

    Its node keeps what the pod has requested so far, or twice that if the growth is deferred.
    """
    (container,) = pod["spec"]["containers"]
    own = container["resources"]["requests"]
    wanted, actual, allocated = {
        "shrinking": (_times(own, 1, 2), own, _times(own, 1, 2)),
        "growing": (own, _times(own, 1, 2), own),
        "deferred": (_times(own, 2, 1), own, own),
        "infeasible": ({**own, "cpu": INFEASIBLE_CPUS}, own, own),
    }[stage]
    spec, status = dict(pod["spec"]), dict(pod["status"])
    held = {"allocatedResources": allocated, "resources": {"requests": actual}}
    if level == "pod":
        spec |= {"resources": {"requests": wanted}, "containers": [{**container, "resources": {}}]}
        status |= held
    elif level == "sidecar":
        sidecar = {"name": "s", "image": "i", "restartPolicy": "Always", "resources": {"requests": wanted}}
        spec |= {"initContainers": [sidecar], "containers": [{**container, "resources": {}}]}
        status["initContainerStatuses"] = [{"name": "s", **held}]
    else:
        spec["containers"] = [{**container, "resources": {**container["resources"], "requests": wanted}}]
        status["containerStatuses"] = [{"name": container["name"], **held}]
    condition = {"type": "PodResizeInProgress", "status": "True"}
    if stage in _REASONS:
        condition |= {"type": "PodResizePending", "reason": _REASONS[stage]}
    status["conditions"] = [*status.get("conditions", ()), condition]
    return {**pod, "spec": spec, "status": status}


def _times(requests: JSONDict, factor: int, divisor: int) -> JSONDict:
    """Return the requests times a fraction; cpu is in m, memory in Mi."""
    cpu, memory = (int(requests[name].removesuffix(unit)) for name, unit in (("cpu", "m"), ("memory", "Mi")))
    return {**requests, "cpu": f"{cpu * factor // divisor}m", "memory": f"{memory * factor // divisor}Mi"}
