"""List, get and delete the CCE nodes of a cluster that Journeyman created, and read the maintenance of their servers.

CCE accepts a node before ECS has its server. If there is no stock, the node gets the phase Error, and its job says why
(`Instance.failure`). Nodes whose server a user deleted remain until they are deleted as well.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Final

from journeyman.cloud.huawei import node_names
from journeyman.cloud.huawei.huawei_errors import (
    cause_of,
    is_locked,
    launch_rule,
    translated,
    translated_of_cluster,
)
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.rest_api import CCE, ECS, Query, RestApi, RestCall, pages
from journeyman.cloud.instance_batches import by_instance_id, delete_in_batches
from journeyman.cloud.launching import usable_and_oldest_first
from journeyman.core.api import labels
from journeyman.core.state import InstanceStatus
from journeyman.core.state.instances import BuildFailure
from journeyman.errors import CloudProviderError, NodeClaimNotFoundError, NoInstanceIdError
from journeyman.ports import Instance

_log = logging.getLogger(__name__)

_NODES_PAGE: Final = 500
_SERVERS_PAGE: Final = 500
_SERVER_IDS: Final = 100  # of one request
_EVENTS_PAGE: Final = 100
_UNFINISHED: Final = ("inquiring", "scheduled", "executing")
_DEPTH: Final = 4  # of sub-jobs; a node's creation has three levels
_NODE_ID: Final = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", re.IGNORECASE)
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_EPOCH: Final = datetime.fromtimestamp(0, timezone.utc)

# ports.Instance.state by NodeStatus.phase; a deleted node is not listed any more
_PHASES: Final[Mapping[str, str]] = {
    "Build": "pending",
    "Installing": "pending",
    "Upgrading": "running",
    "Active": "running",
    "Abnormal": "running",  # the node's conditions say what is wrong
    "Deleting": "shutting-down",
    "Error": "stopped",  # it will never run
}
_STOPPED_SERVERS: Final = frozenset({"SHUTOFF", "DELETED", "SOFT_DELETED", "ERROR"})


class HuaweiInstances:
    """The CCE nodes of one cluster."""

    def __init__(self, api: RestApi, settings: HuaweiSettings) -> None:
        self._api = api
        self._settings = settings
        self._nodes_path = f"/api/v3/projects/{settings.project_id}/clusters/{settings.cluster_id}/nodes"

    def list(self) -> tuple[Instance, ...]:
        """Return all nodes that were created for NodeClaims and are not deleted, by provider id."""
        nodes = [node for node in self._nodes() if node_names.digits_of(node["metadata"].get("name") or "")]
        servers = self._servers(_server_id(node) for node in nodes) if nodes else {}
        found = (self._instance(node, servers.get(_server_id(node))) for node in nodes)
        return tuple(sorted(found, key=lambda instance: instance.provider_id))

    def by_claim_uid(self, uids: Iterable[str]) -> dict[str, Instance]:
        """Return the nodes that were created for these NodeClaims, by claim UID.

        If a claim has two nodes, the result holds one that is usable; of two such ones the older, and of two of the same age
        the lesser provider id. The servers are not read, since the names of nodes have the UIDs.
        """
        wanted = {node_names.uid_digits(uid): uid for uid in uids}
        found: dict[str, Instance] = {}
        nodes = self._nodes() if wanted else iter(())
        named = ((node_names.digits_of(node["metadata"].get("name") or ""), node) for node in nodes)
        mine = [(wanted[digits], self._instance(node, {})) for digits, node in named if digits in wanted]
        for uid, instance in sorted(mine, key=lambda each: usable_and_oldest_first(each[1])):
            found.setdefault(uid, instance)
        return found

    def get_each(self, provider_ids: Iterable[str]) -> dict[str, Instance]:
        """Return the nodes that were not deleted, by provider id. Raises CloudProviderError.

        One node is read by its id, and several with the list of all nodes, whatever their names are.
        """
        wanted, _ = by_instance_id(provider_ids, node_id_from)
        nodes = self._node(*wanted) if len(wanted) == 1 else (self._nodes() if wanted else ())
        found = [node for node in nodes if node["metadata"]["uid"] in wanted]
        servers = self._servers_by_id(id_ for node in found if (id_ := _server_id(node)))
        return {node["metadata"]["uid"]: self._instance(node, servers.get(_server_id(node))) for node in found}

    def _node(self, node_id: str) -> Sequence[Mapping[str, Any]]:
        """Return one node; nothing if it was deleted."""
        path = f"{self._nodes_path}/{node_id}"
        try:
            with translated("cce:node:get", provider_id=node_id):
                return [self._api(RestCall(service=CCE, operation="ShowNode", method="GET", path=path))]
        except NodeClaimNotFoundError:
            return []

    def delete_each(self, provider_ids: Iterable[str]) -> dict[str, CloudProviderError]:
        """Start deleting the nodes behind NodeClaims, with their servers; safe to repeat. CCE deletes one node in a request.

        A node that is locked, such as while ECS reclaims its Spot server, is deleted by a later call.

        Returns:
            The error of each that CCE refused, by provider id: NodeClaimNotFoundError if it was deleted.
        """
        return delete_in_batches(provider_ids, node_id_from, self._delete, 1)

    def _delete(self, ids: Mapping[str, str]) -> dict[str, CloudProviderError]:
        """Delete one node. Raises CloudProviderError."""
        [node_id] = ids
        path = f"{self._nodes_path}/{node_id}"
        try:
            with translated("cce:node:delete", provider_id=node_id):
                self._api(RestCall(service=CCE, operation="DeleteNode", method="DELETE", path=path))
        except CloudProviderError as error:
            if not is_locked(error):
                raise
            _log.info("cannot delete the node yet: %s", cause_of(error), extra={"provider-id": node_id})
        return {}

    def by_server(self) -> dict[str, str]:
        """Return the provider ids of the cluster's nodes by the id of their server, those of other nodes included.

        Raises:
            CloudProviderError: CCE did not respond, or the caller lacks cce:node:list.
        """
        return {server: node["metadata"]["uid"] for node in self._nodes() if (server := _server_id(node))}

    def statuses(self) -> tuple[InstanceStatus, ...]:
        """Return the unfinished maintenance of this cluster's nodes, sorted by provider id and name."""
        events = [event for state in _UNFINISHED for event in self._scheduled_events(state)]
        nodes = self.by_server() if events else {}
        found = {
            InstanceStatus(provider_id=nodes[event["instance_id"]], category="EventStatus", name=event["type"])
            for event in events
            if event["instance_id"] in nodes
        }
        return tuple(sorted(found, key=lambda status: (status.provider_id, status.name)))

    def end_reasons(self, provider_ids: Collection[str]) -> Mapping[str, BuildFailure]:
        """Return nothing: a deleted node is forgotten, and one that could not be built is listed, with its reason."""
        return {}

    def node_id_of_job(self, job_id: str) -> str:
        """Return the id of the node that a job creates; empty without a job, or if it does not say yet. Raises CloudProviderError."""
        for job in self._jobs(job_id):
            spec = job.get("spec") or {}
            if spec.get("type") == "CreateNodeVM" and spec.get("resourceID"):
                return str(spec["resourceID"])
        return ""

    def failure_of_job(self, job_id: str) -> BuildFailure:
        """Return why a node could not be built. Raises CloudProviderError."""
        texts = [str((job.get("status") or {}).get("reason") or "") for job in self._jobs(job_id)]
        text = max(texts, key=len, default="") or "CCE does not say why"  # the innermost job has the cause in full
        return launch_rule("", text).build_failure(text)

    def _jobs(self, job_id: str) -> Iterator[Mapping[str, Any]]:
        """Yield a job and its sub-jobs; those that are listed by id only are read, and those that CCE has forgotten are left out."""
        waiting = [(job_id, 0)] if job_id else []
        while waiting:
            id_, depth = waiting.pop(0)
            path = f"/api/v3/projects/{self._settings.project_id}/jobs/{id_}"
            try:
                with translated("cce:job:get", job=id_):
                    job = self._api(RestCall(service=CCE, operation="ShowJob", method="GET", path=path))
            except NodeClaimNotFoundError:  # the code says "resource not found", which is the job here, not its node
                continue
            yield job
            for sub_job in (job.get("spec") or {}).get("subJobs") or ():
                yield sub_job
                sub_id = (sub_job.get("metadata") or {}).get("uid")
                if sub_id and depth < _DEPTH:
                    waiting.append((sub_id, depth + 1))

    def _instance(self, node: Mapping[str, Any], server: Mapping[str, Any] | None) -> Instance:
        """Return the instance of a node; `server` is None if ECS has none any more, and empty if it was not read."""
        metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
        digits = node_names.digits_of(metadata.get("name") or "")
        phase = str(status.get("phase") or "Build")
        state = _PHASES.get(phase, "running")
        is_server_gone = server is None and phase not in ("Build", "Installing") and bool(status.get("serverId"))
        if state == "running" and (is_server_gone or (server or {}).get("status") in _STOPPED_SERVERS):
            state = "stopped"
        extended = spec.get("extendParam") or {}
        return Instance(
            provider_id=metadata["uid"],
            instance_type=spec.get("flavor") or "",
            zone=spec.get("az") or "",
            capacity_type=labels.SPOT if extended.get("marketType") == "spot" else labels.ON_DEMAND,
            state=state,
            launched_at=parse_time(metadata.get("creationTimestamp") or ""),
            image_id=str(extended.get("alpha.cce/NodeImageID") or ""),
            subnet_id=str(((spec.get("nodeNicSpec") or {}).get("primaryNic") or {}).get("subnetId") or ""),
            tags=node_names.instance_tags(digits, node_names.from_server((server or {}).get("tags") or ())),
            failure=self._failure(str(status.get("jobID") or ""), phase, server),
        )

    def _failure(self, job_id: str, phase: str, server: Mapping[str, Any] | None) -> BuildFailure | None:
        """Return why the node could not be built, or why its server ended; None if nothing is known."""
        if phase == "Error":
            return self.failure_of_job(job_id)
        fault = (server or {}).get("fault") or {}
        if (server or {}).get("status") not in _STOPPED_SERVERS or not fault:
            return None
        text = str(fault.get("message") or fault.get("code") or "ECS does not say why")
        return launch_rule("", text).build_failure(text)

    def _nodes(self) -> Iterator[Mapping[str, Any]]:
        """Yield the cluster's nodes, those of others included."""

        def read(marker: Query) -> Any:
            query = {"limit": _NODES_PAGE, **marker}
            call = RestCall(service=CCE, operation="ListNodes", method="GET", path=self._nodes_path, query=query)
            with translated_of_cluster("cce:node:list", self._settings.cluster_id):
                return self._api(call)

        for page in pages(read, lambda answer: (answer.get("pageInfo") or {}).get("nextMarker")):
            yield from page.get("items") or ()

    def _servers(self, server_ids: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return the servers by id: those with the cluster's tag, and of the others each that exists."""
        ids = {id_ for id_ in server_ids if id_}
        found: dict[str, Mapping[str, Any]] = {}
        page = 1
        while ids:
            tags = f"{node_names.CLUSTER}={self._settings.cluster_id}"
            servers = self._read_servers({"tags": tags, "limit": _SERVERS_PAGE, "offset": page})
            found |= {server["id"]: server for server in servers}
            page += 1
            if len(servers) < _SERVERS_PAGE:
                break
        return found | self._servers_by_id(ids - found.keys())  # deleted, or without the tag

    def _servers_by_id(self, ids: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        remaining = iter(sorted(ids))
        while some := list(islice(remaining, _SERVER_IDS)):
            found |= {server["id"]: server for server in self._read_servers({"server_id": ",".join(some)})}
        return found

    def _read_servers(self, query: Mapping[str, str | int]) -> Sequence[Mapping[str, Any]]:
        path = f"/v1/{self._settings.project_id}/cloudservers/detail"
        with translated("ecs:cloudServers:list"):
            answer = self._api(
                RestCall(service=ECS, operation="ListServersDetails", method="GET", path=path, query=query)
            )
        found: Sequence[Mapping[str, Any]] = answer.get("servers") or ()
        return found

    def _scheduled_events(self, state: str) -> Iterator[Mapping[str, Any]]:
        path = f"/v3/{self._settings.project_id}/instance-scheduled-events"

        def read(marker: Query) -> Any:
            query = {"state": state, "limit": _EVENTS_PAGE, **marker}
            call = RestCall(service=ECS, operation="ListScheduledEvents", method="GET", path=path, query=query)
            with translated("ecs:instanceScheduledEvents:list"):
                return self._api(call)

        for page in pages(read, lambda answer: (answer.get("page_info") or {}).get("next_marker")):
            yield from page.get("events") or ()


def node_id_from(provider_id: str) -> str:
    """Return the id of the CCE node; the provider id is just that. Raises NoInstanceIdError."""
    if not _NODE_ID.match(provider_id):
        raise NoInstanceIdError("the provider id is no id of a CCE node", provider_id=provider_id)
    return provider_id


def parse_time(text: str) -> datetime:
    """Return a time as CCE writes it, in UTC: `2020-02-01 08:20:49.944664515 +0000 UTC`; the epoch if it is none."""
    found = _TIME.match(text)
    return datetime.fromisoformat(f"{found.group(1)}T{found.group(2)}+00:00") if found else _EPOCH


def _server_id(node: Mapping[str, Any]) -> str:
    return str((node.get("status") or {}).get("serverId") or "")
