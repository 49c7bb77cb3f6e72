"""Write the CustomResourceDefinitions, generated from the models, into a folder (by default this one and the chart's).

Usage: python infra/crds/generate.py [DEST]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from journeyman.core.api import crds

HERE = Path(__file__).parent
DESTINATIONS = (HERE, HERE.parent / "chart" / "files" / "crds")  # a chart holds only what lies inside it
HEADER = "# Generated from shared/journeyman/core/api by `make crds`. Do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Plain block style: shared lists are written out, and list items are indented."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write the same list twice rather than an anchor."""
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent list items below their key."""
        super().increase_indent(flow, False)


def rendered() -> Iterator[tuple[str, str]]:
    """Every CRD as (file name, YAML text)."""
    for name, document in crds.documents():
        yield name, HEADER + yaml.dump(document, Dumper=_Dumper, sort_keys=True, width=120, allow_unicode=True)


def main() -> None:
    """Write the files."""
    for destination in (Path(sys.argv[1]),) if len(sys.argv) > 1 else DESTINATIONS:
        destination.mkdir(parents=True, exist_ok=True)
        for name, text in rendered():
            (destination / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
