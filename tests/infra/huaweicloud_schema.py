"""Writes huaweicloud_schema.json: what the provider of Huawei Cloud says about the resources of infra/huawei.

With Terraform or OpenTofu, and the provider (its binary, or one built from its sources):

    terraform -chdir=infra/huawei init
    terraform -chdir=infra/huawei providers schema -json | python -m tests.infra.huaweicloud_schema
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from journeyman_simulator.huawei_account.fgs_stack import read_description

FILE = Path(__file__).with_name("huaweicloud_schema.json")
KINDS = {"resource": "resource_schemas", "data": "data_source_schemas"}


def used_types() -> dict[str, list[str]]:
    """Return the types of resources and data sources in infra/huawei."""
    blocks = read_description()
    return {kind: sorted({block.labels[0] for block in blocks if block.kind == kind}) for kind in KINDS}


def short(block: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a block with their types, and its nested blocks; what only the cloud sets is `computed`."""
    flags = ("required", "optional", "computed")
    return {
        "attributes": {
            name: {"type": attribute["type"], "is": next(flag for flag in flags if attribute.get(flag))}
            for name, attribute in block.get("attributes", {}).items()
        },
        "blocks": {
            name: {"least": nested.get("min_items", 0), "most": nested.get("max_items", 0), **short(nested["block"])}
            for name, nested in block.get("block_types", {}).items()
            if name != "timeouts"
        },
    }


def main() -> None:
    """Write the file from the schema on standard input."""
    (provider,) = json.load(sys.stdin)["provider_schemas"].values()
    found = {
        kind: {type_: short(provider[KINDS[kind]][type_]["block"]) for type_ in types}
        for kind, types in used_types().items()
    }
    FILE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
