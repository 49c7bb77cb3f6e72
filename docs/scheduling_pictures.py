"""Write docs/pictures/worked-example.svg: one small case, packed by price and packed into the fewest nodes.

`make pictures` runs it. Both plans are the scheduler's answers to docs/examples/worked-example.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

DOCS: Final = Path(__file__).parent
SCENARIO: Final = DOCS / "examples" / "worked-example.json"
PICTURE: Final = DOCS / "pictures" / "worked-example.svg"
COLOURS: Final = {"batch": "#d97706", "cache": "#2563eb", "web": "#059669"}
REQUESTS: Final = {"batch": (1.75, 2.0), "cache": (0.25, 7.0), "web": (0.5, 1.0)}  # vCPU, GiB
WIDTH: Final = 760
ROW: Final = 58
PIXELS: Final = (52.0, 8.0)  # per vCPU, per GiB


def solved(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return what `journeyman solve` answers."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(scenario, file)
        file.flush()
        command = [str(Path(sys.executable).with_name("journeyman")), "solve", file.name]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(answer.stdout)
    return result


def picture() -> str:
    """Return the picture as SVG."""
    by_price = json.loads(SCENARIO.read_text(encoding="utf-8"))
    fewest = json.loads(SCENARIO.read_text(encoding="utf-8"))
    for item in fewest["objects"]:
        if item["kind"] == "NodePool":
            item["metadata"]["annotations"] = {"journeyman.dev/packing": "fewest-nodes"}
    sizes = {
        t["name"]: (float(t["capacity"]["cpu"]), float(t["capacity"]["memory"][:-2])) for t in by_price["instanceTypes"]
    }
    lines: list[str] = []
    top = 20
    for title, scenario in (("By price", by_price), ("Fewest nodes", fewest)):
        answer = solved(scenario)
        over = answer["price"] / answer["lowerBound"]
        heading = f"{title}: {answer['price']:.3f} $/h, {over:.2f} × the lower bound"
        lines.append(f'<text x="10" y="{top}" font-weight="bold">{heading}</text>')
        top += 14
        for claim in sorted(answer["nodeClaims"], key=lambda claim: (-claim["price"], claim["pods"])):
            lines += _node(claim, sizes, top)
            top += ROW
        top += 24
    legend = "".join(
        f'<rect x="{10 + 190 * i}" y="{top - 10}" width="12" height="12" fill="{colour}"/>'
        f'<text x="{28 + 190 * i}" y="{top}">{kind}: {REQUESTS[kind][0]:g} vCPU, {REQUESTS[kind][1]:g} GiB</text>'
        for i, (kind, colour) in enumerate(COLOURS.items())
    )
    body = "\n".join([*lines, legend])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top + 14}" font-family="sans-serif" '
        f'font-size="13" role="img" aria-label="Nodes of one plan, packed by price and into the fewest nodes">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _node(claim: dict[str, Any], sizes: dict[str, tuple[float, float]], top: int) -> list[str]:
    name = claim["cheapestOffering"].partition("/")[0]
    kinds = Counter(pod.partition("/")[2].partition("-")[0] for pod in claim["pods"])
    lines = [
        f'<text x="10" y="{top + 20}">{name}</text>',
        f'<text x="10" y="{top + 38}">{claim["price"]:.3f} $/h</text>',
    ]
    for axis, unit in enumerate(("vCPU", "GiB")):
        y = top + 6 + 22 * axis
        lines.append(
            f'<rect x="100" y="{y}" width="{sizes[name][axis] * PIXELS[axis]:g}" height="18" fill="#f3f4f6" stroke="#9ca3af"/>'
        )
        x = 100.0
        for kind in COLOURS:
            for _ in range(kinds[kind]):
                width = REQUESTS[kind][axis] * PIXELS[axis]
                lines.append(
                    f'<rect x="{x:g}" y="{y}" width="{width:g}" height="18" fill="{COLOURS[kind]}" stroke="white"/>'
                )
                x += width
        used = sum(REQUESTS[kind][axis] * number for kind, number in kinds.items())
        lines.append(
            f'<text x="{108 + sizes[name][axis] * PIXELS[axis]:g}" y="{y + 14}">{used:g} of {sizes[name][axis]:g} {unit}</text>'
        )
    return lines


if __name__ == "__main__":
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(), encoding="utf-8")
