"""Launch templates: everything about a launch but the choice of type, zone and price. Named by their content.

Restates: karpenter-provider-aws pkg/providers/launchtemplate/launchtemplate.go `EnsureAll`,
pkg/providers/amifamily/resolver.go `Resolve`.
Differs: one lookup for all names instead of one each; nothing is deleted when a cache forgets it, only with its NodeClass.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from journeyman.cloud.aws import tags
from journeyman.cloud.aws.capacity import EFA
from journeyman.cloud.aws.errors import code_of, translated
from journeyman.cloud.aws.lowering import satisfies
from journeyman.cloud.aws.settings import Clients
from journeyman.cloud.aws.template_content import TemplateContent, Variant
from journeyman.cloud.aws.ttl_cache import TtlCache
from journeyman.core.api.resources import PODS
from journeyman.core.catalogue import InstanceType
from journeyman.errors import CloudProviderError, CreateError
from journeyman.ports import Clock

_PREFIX: Final = "karpenter.k8s.aws"
_TTL: Final = timedelta(minutes=5)
_NAMES_PER_CALL: Final = 200  # EC2's limit of values in one filter
_ALREADY_THERE: Final = "InvalidLaunchTemplateName.AlreadyExistsException"
_NO_SUCH: Final = "InvalidLaunchTemplateName.NotFoundException"


class LaunchTemplate(Struct, frozen=True, kw_only=True):
    """A template and the types that launch from it, in the order given."""

    name: str
    image_id: str
    instance_types: tuple[InstanceType, ...]
    user_data_bytes: int = 0  # as instances read it, without the encoding that it travels in


class LaunchTemplates:
    """Templates of one cluster, made when first needed."""

    def __init__(self, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._known: TtlCache[bool] = TtlCache(clock, _TTL)

    def ensure(self, content: TemplateContent, types: Iterable[InstanceType]) -> tuple[LaunchTemplate, ...]:
        """Templates that exist in EC2 for launching one of these types, by name.

        Raises:
            CreateError: No image of the NodeClass fits any type, or the content cannot be used.
            CloudProviderError: EC2 refused.
        """
        bodies: dict[str, dict[str, Any]] = {}
        templates: list[LaunchTemplate] = []
        for variant, members in _variants(content, types).items():
            body = content.data(variant)
            name = f"{_PREFIX}/{_digest(body)}"
            bodies[name] = body
            templates.append(
                LaunchTemplate(
                    name=name,
                    image_id=variant.image_id,
                    instance_types=tuple(members),
                    user_data_bytes=len(base64.b64decode(body["UserData"])),
                )
            )
        if not templates:
            raise CreateError("no AMI of the NodeClass fits the instance types", condition_reason="AMINotFound")
        self._create_missing(bodies, content.tags)
        return tuple(sorted(templates, key=lambda template: template.name))

    def forget(self, templates: Iterable[LaunchTemplate]) -> None:
        """EC2 does not know them after all: look again next time."""
        for template in templates:
            self._known.forget(template.name)

    def release(self, *, cluster: str, node_class: str) -> None:
        """Delete those that were made for the NodeClass in this cluster; who else needs one makes it again.

        Raises CloudProviderError.
        """
        owned = [
            {"Name": f"tag:{tags.CLUSTER}", "Values": [cluster]},
            {"Name": f"tag:{tags.NODE_CLASS}", "Values": [node_class]},
        ]
        for name in sorted(self._names(owned)):
            try:
                with translated("ec2:DeleteLaunchTemplate", launch_template=name):
                    self._clients.ec2.delete_launch_template(LaunchTemplateName=name)
            except CloudProviderError as error:
                if code_of(error) != _NO_SUCH:
                    raise
            self._known.forget(name)

    def _create_missing(self, bodies: Mapping[str, dict[str, Any]], shared: Mapping[str, str]) -> None:
        unknown = sorted(name for name in bodies if not self._known.has(name))
        existing = self._existing(unknown)
        for name in unknown:
            if name not in existing:
                self._create(name, bodies[name], shared)
            self._known.put(name, True)

    def _existing(self, names: list[str]) -> set[str]:
        """Those of the names that EC2 has; a filter, unlike a list of names, does not fail on a missing one."""
        found: set[str] = set()
        for start in range(0, len(names), _NAMES_PER_CALL):
            found |= self._names([{"Name": "launch-template-name", "Values": names[start : start + _NAMES_PER_CALL]}])
        return found

    def _names(self, filters: list[dict[str, Any]]) -> set[str]:
        pages = self._clients.ec2.get_paginator("describe_launch_templates")
        with translated("ec2:DescribeLaunchTemplates"):
            return {
                t["LaunchTemplateName"] for page in pages.paginate(Filters=filters) for t in page["LaunchTemplates"]
            }

    def _create(self, name: str, body: dict[str, Any], shared: Mapping[str, str]) -> None:
        try:
            with translated("ec2:CreateLaunchTemplate", launch_template=name):
                self._clients.ec2.create_launch_template(
                    LaunchTemplateName=name,
                    LaunchTemplateData=body,
                    TagSpecifications=[{"ResourceType": "launch-template", "Tags": tags.to_aws(shared)}],
                )
        except CloudProviderError as error:
            if code_of(error) != _ALREADY_THERE:  # a launch beside us was faster; same name, same content
                raise


def _digest(content: Mapping[str, Any]) -> str:
    """Equal content, equal name, in every run and on every machine."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def _variants(content: TemplateContent, types: Iterable[InstanceType]) -> dict[Variant, list[InstanceType]]:
    """The types by what their template must say; types that no image fits are left out.

    Restates: pkg/providers/amifamily/ami.go `MapToInstanceTypes`: the first image that fits, newest first.
    """
    wants_efa = bool(content.claim.spec.resources.requests.get(EFA))
    groups: dict[Variant, list[InstanceType]] = {}
    for candidate in types:
        values = {r.key: r.values for r in candidate.requirements}
        image = next((a for a in content.node_class.amis if satisfies(values, a.get("requirements") or ())), None)
        if image is None:
            continue
        variant = Variant(
            image_id=image["id"],
            image_name=image.get("name", ""),
            max_pods=candidate.capacity.get(PODS, 0),
            efa_interfaces=candidate.capacity.get(EFA, 0) if wants_efa else 0,
        )
        groups.setdefault(variant, []).append(candidate)
    return groups
