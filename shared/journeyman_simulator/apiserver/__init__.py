"""An in-memory Kubernetes API server, for the simulated cluster and for tests.

`ApiServer` is the store (a `ports.KubeStore`); `http_server.HttpApiServer` serves it over HTTP. `tests/contract` runs the
same tests against this server and a real kube-apiserver, so that both behave alike.
"""

from journeyman_simulator.apiserver.served_kinds import ServedKind
from journeyman_simulator.apiserver.server import ApiServer, Write

__all__ = ["ApiServer", "ServedKind", "Write"]
