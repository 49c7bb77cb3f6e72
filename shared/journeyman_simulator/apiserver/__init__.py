"""An API server in memory: what Journeyman, and a simulated cluster around it, cannot tell from a real one.

`ApiServer` is the store itself (a `ports.KubeStore`); `http.HttpFront` puts it behind real HTTP. `tests/contract` holds one
suite for this server and a real kube-apiserver, so that it cannot drift.
"""

from journeyman_simulator.apiserver.served_kinds import ServedKind
from journeyman_simulator.apiserver.server import ApiServer, Write

__all__ = ["ApiServer", "ServedKind", "Write"]
