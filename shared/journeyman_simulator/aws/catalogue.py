"""DescribeInstanceTypes and its offerings: paged, of this region, and built once instead of on every call."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from moto.ec2.responses.instances import InstanceResponse

from journeyman_simulator.aws.patching import Patch
from journeyman_simulator.aws.wire import ec2_answer

_TYPES_PAGE = 100  # DescribeInstanceTypes' page when MaxResults is not given, and its largest
_OFFERINGS_PAGE = 1000
_texts: dict[str, str] = {}  # by request; moto's catalogue is a file that does not change while a process runs


def patches() -> tuple[Patch, ...]:
    """The two catalogue calls. Their data never changes, so the text of an answer is kept and given again."""
    return (
        Patch(
            owner=InstanceResponse,
            name="describe_instance_types",
            replace=lambda original: _built_once(original, "InstanceTypes", _TYPES_PAGE, _of_region),
            reason="pages of 100, only the region's types, serialized once (moto takes two seconds a call)",
        ),
        Patch(
            owner=InstanceResponse,
            name="describe_instance_type_offerings",
            replace=lambda original: _built_once(original, "InstanceTypeOfferings", _OFFERINGS_PAGE, _all),
            reason="pages of 1000, serialized once",
        ),
    )


def _built_once(
    original: Callable[[InstanceResponse], ActionResult],
    key: str,
    largest_page: int,
    select: Callable[[str, list[Any]], list[Any]],
) -> Callable[[Any], str]:
    def describe(response: Any) -> str:
        response.error_on_dryrun()
        request = json.dumps([key, response.region, sorted(response.querystring.items())], default=str)
        if request not in _texts:
            read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
            result: Any = original(response).result
            items = select(response.region, result[key])
            start, size = int(read("NextToken") or 0), min(int(read("MaxResults") or largest_page), largest_page)
            page: dict[str, Any] = {key: items[start : start + size]}
            if start + size < len(items):
                page["NextToken"] = str(start + size)
            _texts[request] = ec2_answer(f"Describe{key}", page)
        return _texts[request]

    return describe


def _of_region(region: str, types: list[Any]) -> list[Any]:
    offered = {offer["InstanceType"] for offer in INSTANCE_TYPE_OFFERINGS["region"].get(region, ())}
    return [item for item in types if item["InstanceType"] in offered]


def _all(_region: str, items: list[Any]) -> list[Any]:
    return items
