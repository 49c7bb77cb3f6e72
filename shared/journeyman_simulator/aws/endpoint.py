"""An account behind a LocalStack-compatible endpoint: LocalStack itself, or moto's server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from localstack_client.config import get_service_endpoints
from localstack_client.session import Session

from journeyman.errors import ConfigurationError
from journeyman_simulator.aws.server import client_for


class EndpointAccount:
    """Clients for one endpoint, through localstack-client as its users know it.

    Credentials are localstack-client's made-up ones, so the account is the endpoint's own. Nothing is patched there, so
    it answers as it answers: moto's own CreateFleet takes the first override, for one.
    """

    account = "000000000000"

    def __init__(self, endpoint_url: str, region: str = "us-east-1") -> None:
        parts = urlsplit(endpoint_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(
                f"{endpoint_url!r} is no endpoint", to_do="give it the form http://localhost:4566, or 'moto'"
            )
        self.endpoint_url = endpoint_url
        self.region = region
        host = f"{parts.hostname}:{parts.port or 4566}"
        self._session = Session(region_name=region, localstack_host=host)
        self._known_services = frozenset(get_service_endpoints(localstack_host=host))

    def client(self, service: str) -> Any:
        """A boto3 client; services that localstack-client does not know get a plain one for the same endpoint."""
        if service in self._known_services:
            return self._session.client(service)
        return client_for(self.endpoint_url, service, region=self.region)
