"""What Container Service says about an ACK cluster: version, network plugin, container runtime, images, attach script.

Restates: cloudpilot-ai/karpenter-provider-alibabacloud pkg/providers/cluster/ackmanaged.go.
Differs: the attach script is cached by whether it formats a data disk; without that, the first NodeClass decides for all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from operator import attrgetter
from threading import RLock
from typing import Any, Final

from cachetools import TTLCache, cachedmethod
from msgspec import Struct

from journeyman.cloud.alibaba.alibaba_errors import translated
from journeyman.cloud.alibaba.alibaba_settings import AlibabaSettings
from journeyman.cloud.alibaba.open_api import CS, ApiCall, OpenApi
from journeyman.cloud.caching import ttl_cache
from journeyman.errors import CloudProviderError
from journeyman.ports import Clock

_TTL: Final = timedelta(minutes=5)
_SCRIPT_TTL: Final = timedelta(hours=1)
_SCRIPT_LIFETIME: Final = timedelta(days=1)
"""How long ACK accepts a script's token: long enough for an instance that waits for its boot."""
_RUNTIME: Final = re.compile(r"\s+--runtime\s+\S+\s+--runtime-version\s+\S+")
_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}


class AckImage(Struct, frozen=True, kw_only=True):
    """An image that ACK publishes for a Kubernetes version."""

    id: str
    name: str
    arch: str  # as in the label kubernetes.io/arch


class ClusterDetails:
    """One ACK cluster, as Container Service describes it. Caches answers for minutes. Thread-safe."""

    def __init__(self, call: OpenApi, settings: AlibabaSettings, clock: Clock) -> None:
        self._call = call
        self._settings = settings
        self._clock = clock
        self._cache: TTLCache[Any, Any] = ttl_cache(clock, _TTL)
        self._scripts: TTLCache[Any, str] = ttl_cache(clock, _SCRIPT_TTL)
        self._lock = RLock()

    @property
    def network(self) -> str:
        """The network plugin, such as `terway-eniip` or `Flannel`; empty if the cluster does not say. Raises CloudProviderError."""
        try:
            metadata = json.loads(self._describe().get("meta_data") or "{}")
        except ValueError:
            return ""
        return str((metadata.get("Capabilities") or {}).get("Network") or "")

    @property
    def kubernetes_version(self) -> str:
        """The version of the control plane, such as 1.34.1-aliyun.1. Raises CloudProviderError."""
        return self._settings.kubernetes_version or str(self._describe().get("current_version") or "")

    def images(self) -> tuple[AckImage, ...]:
        """Return the images for the cluster's version, in ACK's order. Raises CloudProviderError."""
        return self._images(self.kubernetes_version)

    @cachedmethod(attrgetter("_scripts"), lock=attrgetter("_lock"))
    def attach_script(self, *, format_disk: bool) -> str:
        """Return the command that joins a machine to the cluster, with the container runtime of its node pools.

        Raises:
            CloudProviderError: Container Service refuses the request or does not answer, or the script is empty.
        """
        path = f"/clusters/{self._settings.cluster_id}/attachscript"
        expired = int((self._clock.now() + _SCRIPT_LIFETIME).timestamp())
        body = {"keep_instance_name": True, "format_disk": format_disk, "expired": expired}
        with translated("cs:DescribeClusterAttachScripts", cluster=self._settings.cluster_id):
            script = self._call(ApiCall(service=CS, action="DescribeClusterAttachScripts", path=path, body=body))
        script = str(script).replace("\r\n", "").strip()
        if not script:
            raise CloudProviderError(
                "cs:DescribeClusterAttachScripts returned no script",
                cluster=self._settings.cluster_id,
                to_do="check in the console that nodes can be added to the cluster",
            )
        runtime = self._runtime()
        # a function as replacement, so that the version's text is not read as a pattern
        return _RUNTIME.sub(lambda _: runtime, script) if runtime else script

    def _runtime(self) -> str:
        """Return the runtime's flags, from the default node pool or else the one with most healthy nodes; empty without one.

        The script may name Docker, which the cluster's version does not support any more.
        """
        pools = self._get("DescribeClusterNodePools", "nodepools").get("nodepools") or ()
        configured = [
            pool for pool in pools if (pool.get("kubernetes_config") or {}).get("runtime_version") is not None
        ]
        if not configured:
            return ""
        best = max(configured, key=_preferred)["kubernetes_config"]
        return f" --runtime {best['runtime']} --runtime-version {best['runtime_version']}"

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def _describe(self) -> Mapping[str, Any]:
        return self._get("DescribeClusterDetail")

    @cachedmethod(attrgetter("_cache"), lock=attrgetter("_lock"))
    def _images(self, version: str) -> tuple[AckImage, ...]:
        query = {"Region": self._settings.region, "ClusterType": "ManagedKubernetes", "KubernetesVersion": version}
        with translated("cs:DescribeKubernetesVersionMetadata"):
            answer = self._call(
                ApiCall(
                    service=CS,
                    action="DescribeKubernetesVersionMetadata",
                    method="GET",
                    path="/api/v1/metadata/versions",
                    parameters=query,
                )
            )
        return tuple(
            AckImage(
                id=image["image_id"], name=image.get("image_name") or "", arch=_ARCHITECTURES[image["architecture"]]
            )
            for entry in answer or ()
            for image in entry.get("images") or ()
            if image.get("architecture") in _ARCHITECTURES
        )

    def _get(self, action: str, below: str = "") -> Mapping[str, Any]:
        path = f"/clusters/{self._settings.cluster_id}" + (f"/{below}" if below else "")
        with translated(f"cs:{action}", cluster=self._settings.cluster_id):
            answer: Mapping[str, Any] = self._call(ApiCall(service=CS, action=action, method="GET", path=path))
        return answer


def _preferred(pool: Mapping[str, Any]) -> tuple[Any, ...]:
    info, status = pool.get("nodepool_info") or {}, pool.get("status") or {}
    return bool(info.get("is_default")), int(status.get("healthy_nodes") or 0), str(info.get("nodepool_id") or "")
