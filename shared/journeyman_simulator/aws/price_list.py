"""The Pricing API (GetProducts) of the simulation: on-demand Linux prices of one region, in AWS's shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from werkzeug.wrappers import Request, Response

from journeyman_simulator.aws.gate import Gate
from journeyman_simulator.aws.offers import is_wanted, offer, product_attributes
from journeyman_simulator.aws.price_table import PriceTable

_PAGE = 100  # GetProducts' largest


def replacing(prices: PriceTable, gate: Gate, region: str) -> Callable[[Any], Callable[..., Any]]:
    """Moto picks a Flask application for each service; requests signed for `pricing` get this one."""
    price_list = _PriceList(prices, gate, region)

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_application(dispatcher: DomainDispatcherApplication, environ: dict[str, Any]) -> Any:
            if "/pricing/aws4_request" in environ.get("HTTP_AUTHORIZATION", ""):
                return price_list
            return original(dispatcher, environ)

        return get_application

    return replace


class _PriceList:
    """A WSGI application."""

    def __init__(self, prices: PriceTable, gate: Gate, region: str) -> None:
        self._gate = gate
        self._region = region
        self._prices = prices

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        operation = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        with self._gate.lock:
            failure = self._gate.refused(operation)
            response = _error(failure) if failure else self._answer(operation, json.loads(request.get_data() or b"{}"))
        return response(environ, start_response)

    def _answer(self, operation: str, request: Mapping[str, Any]) -> Response:
        if operation != "GetProducts" or request.get("ServiceCode") != "AmazonEC2":
            return _error("InvalidParameterException")
        wanted = {item["Field"]: item["Value"] for item in request.get("Filters", ())}
        products = [product for product in self._products() if is_wanted(product, wanted)]
        start = int(request.get("NextToken") or 0)
        end = start + min(int(request.get("MaxResults") or _PAGE), _PAGE)
        answer = {
            "FormatVersion": "aws_v1",
            "PriceList": [json.dumps(offer(product, self._price(product))) for product in products[start:end]],
        }
        return _json(answer | ({"NextToken": str(end)} if end < len(products) else {}))

    def _products(self) -> Iterable[dict[str, str]]:
        for instance_type in sorted({kind for kind, _ in self._prices.pools()}):
            if self._prices.on_demand(instance_type) is not None:
                bare_metal = INSTANCE_TYPES.get(instance_type, {}).get("BareMetal", False)
                yield product_attributes(instance_type, self._region, bare_metal=bare_metal)

    def _price(self, product: Mapping[str, str]) -> float:
        return self._prices.on_demand(product["instanceType"]) or 0.0


def _error(code: str) -> Response:
    return _json({"__type": code, "message": f"simulated refusal: {code}"}, status=400)


def _json(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(body), status=status, content_type="application/x-amz-json-1.1")
