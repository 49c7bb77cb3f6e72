"""`python -m infra.forwarder`: the process in the pod. Settings come from the environment (README.md)."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping

from infra.forwarder import logs
from infra.forwarder.apiserver import ApiServer
from infra.forwarder.forwarder import Forwarder, Sink
from infra.forwarder.metrics import BYTES, Metrics
from infra.forwarder.news import Ledger
from infra.forwarder.serving import serve
from infra.forwarder.settings import SettingError, Settings, read_settings

log = logging.getLogger("forwarder")


def main(variables: Mapping[str, str]) -> int:
    """Run until SIGTERM; the exit status."""
    try:
        settings = read_settings(variables)
    except SettingError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    logs.set_up(settings.cluster, settings.log_level)
    metrics = Metrics()
    ledger = Ledger(settings.idle_seconds, settings.max_seconds)
    forwarder = Forwarder(
        settings.cluster, api_server(settings, metrics), sink_of(settings), ledger=ledger, metrics=metrics
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = serve(forwarder, metrics, settings.port)
    forwarder.start()
    log.info("follows %s and sends to %s", settings.server, settings.sink)
    ended.wait()
    flushed = forwarder.stop()
    server.shutdown()
    log.info("ended, nothing is owed" if flushed else "ended; what is owed is told again after the next start")
    return 0


def api_server(settings: Settings, metrics: Metrics) -> ApiServer:
    """The cluster's API server, with the token as it is on disk at each request."""
    path = settings.token_file
    return ApiServer(
        settings.server,
        token=(lambda: path.read_text().strip()) if path is not None else str,
        ca_file=settings.ca_file,
        count_bytes=lambda name, number: metrics.count(BYTES, number, resource=name),
    )


def sink_of(settings: Settings) -> Sink:
    """The sink that was asked for; botocore is imported only for those that need it."""
    if settings.sink == "https":
        from infra.forwarder.https import HttpsSink  # noqa: PLC0415 - see above

        return HttpsSink(settings.receiver_url, settings.receiver_token_file, ca_file=settings.receiver_ca_file)
    from infra.forwarder import aws  # noqa: PLC0415 - see above

    if settings.sink == "eventbridge":
        return aws.EventBridgeSink(settings.event_bus, aws.client("events", settings.region))
    return aws.SqsSink(settings.queues, settings.cluster, aws.client("sqs", settings.region))


if __name__ == "__main__":
    sys.exit(main(os.environ))
