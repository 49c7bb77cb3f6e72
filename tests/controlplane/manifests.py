"""Apply manifests to a real API server as kubectl does; install and remove CRDs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import yaml

from journeyman.core.api.objects import DAEMONSET, EC2NODECLASS, NAMESPACE, NODEPOOL, PDB
from journeyman.core.api.workloads import DEPLOYMENT
from journeyman_simulator.deployment_files import deployment_file
from tests.controlplane.caller import Caller
from tests.helpers.waiting import wait_until

_KINDS = {resource.kind: resource for resource in (DAEMONSET, DEPLOYMENT, EC2NODECLASS, NAMESPACE, NODEPOOL, PDB)}
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def apply(admin: Caller, manifest: Mapping[str, Any]) -> None:
    """Create or update the object by server-side apply."""
    meta = manifest["metadata"]
    path = _KINDS[manifest["kind"]].path(meta.get("namespace", ""), meta["name"])
    admin.do("PATCH", f"{path}?fieldManager=tests&force=true", manifest, kind="application/apply-patch+yaml")


def install_crds(admin: Caller) -> None:
    """Install the repository's CRDs, Journeyman's and Karpenter's; return when the API server serves their kinds."""
    paths = sorted(deployment_file("infra", "crds").glob("*.yaml"))
    install(admin, [yaml.load(path.read_text(), yaml.CSafeLoader) for path in paths])


def install(admin: Caller, crds: Collection[Mapping[str, Any]]) -> None:
    """Install these CRDs; return when the API server serves their kinds."""
    for crd in crds:
        path = f"{_CRDS}/{crd['metadata']['name']}?fieldManager=tests&force=true"
        admin.do("PATCH", path, crd, kind="application/apply-patch+yaml")
    for crd in crds:
        wait_until(lambda crd=crd: _serves(admin, crd), f"{crd['metadata']['name']} is not served")


def remove_crds(admin: Caller) -> None:
    """Delete all CRDs and with them all objects of their kinds; return when they are gone."""
    admin.do("DELETE", _CRDS)
    wait_until(lambda: not admin.do("GET", _CRDS)["items"], "the CRDs are not deleted")


def _serves(admin: Caller, crd: Mapping[str, Any]) -> bool:
    spec = crd["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    return admin.call("GET", path)[0] == 200
