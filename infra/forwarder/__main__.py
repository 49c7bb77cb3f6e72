"""`python -m infra.forwarder`: the process in the pod. Settings are environment variables (README.md)."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping

from infra.forwarder.forwarder import Forwarder, Sink
from infra.forwarder.forwarder_settings import ForwarderSettings, SettingError, read_settings
from infra.forwarder.notifications import Batcher
from infra.forwarder.observability import Metrics, serve, set_up_logging
from journeyman.errors import ConfigurationError
from journeyman.kube.access.in_cluster import with_token_file
from journeyman.kube.transport import Transport

log = logging.getLogger("forwarder")


def main(variables: Mapping[str, str]) -> int:
    """Run until SIGTERM, and return the exit status."""
    try:
        settings = read_settings(variables)
        transport = transport_to(settings)
    except (SettingError, ConfigurationError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    set_up_logging(settings.cluster, settings.log_level)
    metrics = Metrics()
    batcher = Batcher(settings.idle_seconds, settings.max_seconds)
    forwarder = Forwarder(
        settings.cluster, transport, sink_of(settings), cloud=settings.cloud, batcher=batcher, metrics=metrics
    )
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = serve(forwarder, metrics, settings.port)
    forwarder.start()
    log.info("watching %s, sending to %s", settings.server, settings.sink)
    ended.wait()
    flushed = forwarder.stop()
    server.shutdown()
    log.info("stopped, everything is delivered" if flushed else "stopped; the next process sends what is undelivered")
    return 0


def transport_to(settings: ForwarderSettings) -> Transport:
    """Return the transport to the cluster's API server. Raises ConfigurationError if the CA file cannot be read."""
    connection = with_token_file(settings.server, settings.token_file, ca_file=settings.ca_file)
    return Transport(connection, user_agent="journeyman-forwarder", pool_size=5)


def sink_of(settings: ForwarderSettings) -> Sink:
    """Return the configured sink; botocore is imported only for the AWS sinks."""
    if settings.sink == "https":
        from infra.forwarder.https_sink import HttpsSink  # noqa: PLC0415 - see above

        return HttpsSink(settings.receiver_url, settings.receiver_token_file, ca_file=settings.receiver_ca_file)
    from infra.forwarder import aws_sinks  # noqa: PLC0415 - see above

    if settings.sink == "eventbridge":
        return aws_sinks.EventBridgeSink(settings.event_bus, aws_sinks.client("events", settings.region))
    return aws_sinks.SqsSink(settings.queues, settings.cluster, aws_sinks.client("sqs", settings.region))


if __name__ == "__main__":
    sys.exit(main(os.environ))
