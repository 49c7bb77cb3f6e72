"""Measures time and memory of reading a cluster from a real API server, compared with the official client in one run.

    make bench-reading                        1,000 nodes; snapshots with 10,000 pods, lists with 20,000
    python -m tests.bench.bench_reading 500   with other numbers of nodes

Each reading runs in a separate process (`readings.py`). Only the ratios can be compared between machines; the exit status is
1 only if a reader missed objects, whatever the times.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.bench.crowd import NAMESPACES, Crowd, put
from tests.bench.output import say
from tests.controlplane.manifests import install_crds
from tests.controlplane.plane import ControlPlane
from tests.helpers import builders
from tests.helpers.go_programs import GoProgramMissingError

PODS_PER_NODE = 10
RUNS = {
    "official": 3,
    "json": 5,
    "ours": 5,
}  # repeated lists, since a garbage collection in the API server may delay one of them


def main(nodes: int = 1000) -> int:
    """Fill a control plane with objects and read them."""
    try:
        plane = ControlPlane()
    except GoProgramMissingError as missing:
        sys.exit(str(missing))
    pods = nodes * PODS_PER_NODE
    with plane:
        crowd = _fill(plane, nodes)
        put(plane.etcd, crowd.pods(pods))
        say(
            f"{nodes:,} nodes, {nodes:,} NodeClaims, {pods:,} pods of {_size(crowd)} bytes; CPU is this process's own\n"
        )
        whole = _snapshots(_read(plane, "snapshot"), nodes, pods)
        put(plane.etcd, crowd.pods(pods, start=pods))
        return int(not (_lists(plane, 2 * pods) and whole))


def _fill(plane: ControlPlane, nodes: int) -> Crowd:
    """Install the CRDs, a NodePool with its NodeClass, and nodes with their NodeClaims and CSINodes."""
    install_crds(plane.admin)
    plane.admin.do("POST", "/apis/karpenter.sh/v1/nodepools", builders.pool_body())
    for namespace in NAMESPACES:
        plane.admin.do("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    crowd = Crowd(nodes)
    for objects in (crowd.nodes(), crowd.claims(), crowd.csi_nodes()):
        put(plane.etcd, objects)
    return crowd


def _size(crowd: Crowd) -> str:
    sizes = [len(json.dumps(pod, separators=(",", ":"))) for pod in crowd.pods(100)]
    return f"{sum(sizes) // len(sizes):,}"


def _snapshots(found: dict[str, Any], nodes: int, pods: int) -> bool:
    say(f"{'snapshot':12} {'':6} {'seconds':>8} {'CPU s':>7} {'requests':>9} {'received kB':>12}")
    for scope, rows in found["scopes"].items():
        for kind in ("cold", "warm"):
            row = rows[kind]
            figures = f"{row['seconds']:8.3f} {row['cpu']:7.3f} {row['requests']:9} {row['received'] / 1e3:12,.0f}"
            say(f"{scope:12} {kind:6} {figures}")
    say(
        f"warm: 50 pods changed before each, the middle one of 9 runs; the best {found['scopes']['everything']['best']:.3f} s"
    )
    say(f"peak memory of the process: {found['peak'] / 1e6:.0f} MB\n")
    whole = [found["scopes"]["everything"][kind] for kind in ("cold", "warm")]
    return all((row["nodes"], row["pods"]) == (nodes, pods) for row in whole)


def _lists(plane: ControlPlane, pods: int) -> bool:
    say(f"{'list of pods':12} {'pods':>7} {'seconds':>8} {'CPU s':>7} {'peak MB':>8} {'of it for the list':>19}")
    runs = {name: sorted((_read(plane, name) for _ in range(times)), key=_seconds) for name, times in RUNS.items()}
    found = {name: rows[len(rows) // 2] for name, rows in runs.items()}
    for name, row in found.items():
        grown = (row["peak"] - row["base"]) / 1e6
        say(
            f"{name:12} {row['pods']:7,} {row['seconds']:8.2f} {row['cpu']:7.2f} {row['peak'] / 1e6:8.0f} {grown:19.0f}"
        )
    theirs, own = found["official"], found["ours"]
    say(
        f"ours is {theirs['seconds'] / own['seconds']:.1f} times as fast ({theirs['cpu'] / own['cpu']:.1f} times in CPU), with 1/{theirs['peak'] / own['peak']:.1f} of the memory "
        f"(1/{(theirs['peak'] - theirs['base']) / (own['peak'] - own['base']):.1f} of what the list itself takes)"
    )
    say("each is the middle one of several:")
    for name, rows in runs.items():
        say(f"  {name}: {_seconds_of(rows)}")
    return {row["pods"] for rows in runs.values() for row in rows} == {pods}


def _seconds_of(rows: list[dict[str, Any]]) -> str:
    return f"{', '.join(f'{_seconds(row):.2f}' for row in rows)} s"


def _seconds(row: dict[str, Any]) -> float:
    seconds: float = row["seconds"]
    return seconds


def _read(plane: ControlPlane, reading: str) -> dict[str, Any]:
    where = (plane.server, str(plane.ca_file), plane.token)
    command = [sys.executable, "-m", "tests.bench.readings", reading, *where]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:2])))
