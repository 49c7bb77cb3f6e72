"""Serves instance types, offerings and prices on moto: DescribeInstanceTypes, Spot price history, the Pricing API."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.responses.instances import InstanceResponse
from moto.ec2.responses.spot_instances import SpotInstances
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from werkzeug.wrappers import Request, Response

from journeyman_simulator.cloud_rules.price_table import PricedProduct, SimulatedPriceTable, SpotPriceQuery, products
from journeyman_simulator.cloud_rules.service_errors import RequestGate, ServiceError
from journeyman_simulator.cloud_rules.service_time import ServiceTime
from journeyman_simulator.moto_account.moto_extensions import MotoExtension
from journeyman_simulator.moto_account.moto_requests import ec2_response

_TYPES_PAGE = 100  # DescribeInstanceTypes' default and maximum page size
_OFFERINGS_PAGE = 1000
_texts: dict[str, str] = {}  # by request; moto reads its catalogue from a file, which does not change


def offers(instance_type: str, families: Collection[str]) -> bool:
    """Whether a region that offers these families offers the type; without families it offers all of moto's catalogue."""
    return not families or instance_type.partition(".")[0] in families


def catalogue_extensions(families: Collection[str]) -> tuple[MotoExtension, ...]:
    """Return extensions that cache the responses of the two catalogue calls, whose data never changes."""
    return (
        MotoExtension(
            owner=InstanceResponse,
            name="describe_instance_types",
            replace=lambda original: _with_cached_pages(original, "InstanceTypes", _TYPES_PAGE, _of_region, families),
            reason="returns pages of 100 with only the region's types, serialized once (moto takes two seconds per call)",
        ),
        MotoExtension(
            owner=InstanceResponse,
            name="describe_instance_type_offerings",
            replace=lambda original: _with_cached_pages(
                original, "InstanceTypeOfferings", _OFFERINGS_PAGE, _all, families
            ),
            reason="returns pages of 1000, serialized once",
        ),
    )


def _with_cached_pages(
    original: Callable[[InstanceResponse], ActionResult],
    key: str,
    max_page_size: int,
    select: Callable[[str, list[Any]], list[Any]],
    families: Collection[str],
) -> Callable[[Any], str]:
    def describe(response: Any) -> str:
        response.error_on_dryrun()
        request = json.dumps(
            [key, response.region, sorted(families), sorted(response.querystring.items())], default=str
        )
        if request not in _texts:
            read = response._get_param  # noqa: SLF001 - moto has no public way to read a parameter
            result: Any = original(response).result
            items = [i for i in select(response.region, result[key]) if offers(i["InstanceType"], families)]
            start, size = int(read("NextToken") or 0), min(int(read("MaxResults") or max_page_size), max_page_size)
            page: dict[str, Any] = {key: items[start : start + size]}
            if start + size < len(items):
                page["NextToken"] = str(start + size)
            _texts[request] = ec2_response(f"Describe{key}", page)
        return _texts[request]

    return describe


def _of_region(region: str, types: list[Any]) -> list[Any]:
    offered = {offer["InstanceType"] for offer in INSTANCE_TYPE_OFFERINGS["region"].get(region, ())}
    return [item for item in types if item["InstanceType"] in offered]


def _all(_region: str, items: list[Any]) -> list[Any]:
    return items


_HISTORY_PAGE = 1000  # DescribeSpotPriceHistory's maximum page size


def regional_prices(
    on_demand: Mapping[str, float], region: str, since: datetime, seed: int, families: Collection[str]
) -> SimulatedPriceTable:
    """Return the prices of the instance types that a region offers according to moto's catalogue."""
    catalogue = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ())
    offered = (offer for offer in catalogue if offers(offer["InstanceType"], families))
    classes = ((name, facts.get("SupportedUsageClasses", ())) for name, facts in INSTANCE_TYPES.items())
    return SimulatedPriceTable(
        on_demand,
        pools=((offer["InstanceType"], offer["Location"]) for offer in offered),
        since=since,
        without_spot={name for name, supported in classes if "spot" not in supported},
        seed=seed,
    )


def price_extensions(table: SimulatedPriceTable, time: ServiceTime) -> tuple[MotoExtension, ...]:
    """Return extensions that make DescribeSpotPriceHistory return the table's prices."""

    @lru_cache(maxsize=1)  # callers read all pages of a query
    def rows_for(query: SpotPriceQuery, _version: int) -> list[dict[str, Any]]:
        return [{**row, "Timestamp": row["Timestamp"].replace(tzinfo=None)} for row in query.rows(table)]

    def describe_spot_price_history(response: Any) -> str:
        read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
        rows = rows_for(_history_query(response, time.now()), table.version)
        start = int(read("NextToken") or 0)
        end = start + min(int(read("MaxResults") or _HISTORY_PAGE), _HISTORY_PAGE)
        token = str(end) if end < len(rows) else ""
        return ec2_response("DescribeSpotPriceHistory", {"SpotPriceHistory": rows[start:end], "NextToken": token})

    return (
        MotoExtension(
            owner=SpotInstances,
            name="describe_spot_price_history",
            replace=lambda _: describe_spot_price_history,
            reason="returns the table's Spot prices, with dates, filters and pages; moto returns 0.00001 of 2006 for all",
        ),
    )


def _history_query(response: Any, now: datetime) -> SpotPriceQuery:
    read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
    filters = response._filters_from_querystring()  # noqa: SLF001 - same
    if unknown := sorted(set(filters) - {"availability-zone", "instance-type", "product-description"}):
        raise EC2ClientError("InvalidParameterValue", f"The filter '{unknown[0]}' is invalid")
    return SpotPriceQuery(
        types=frozenset(read("InstanceTypes", [])) | {*filters.get("instance-type", ())},
        zones=frozenset(filters.get("availability-zone", ())) | ({read("AvailabilityZone")} - {None}),
        products=frozenset(read("ProductDescriptions", [])) | {*filters.get("product-description", ())},
        start=_aware(read("StartTime"), now - timedelta(days=90)),
        end=_aware(read("EndTime"), now),
    )


def _aware(value: Any, default: datetime) -> datetime:
    """Return a time in a request as an aware datetime, or the default if the request has none."""
    if value is None:
        return default
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=default.tzinfo)


_PRODUCTS_PAGE = 100  # GetProducts' maximum page size


def pricing_api(prices: SimulatedPriceTable, gate: RequestGate, region: str) -> Callable[[Any], Callable[..., Any]]:
    """Return a replacement of moto's dispatcher that routes requests for `pricing` to GetProducts, which moto lacks."""
    price_list = _PriceList(prices, gate, region)

    def replace(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_application(dispatcher: DomainDispatcherApplication, environ: dict[str, Any]) -> Any:
            if "/pricing/aws4_request" in environ.get("HTTP_AUTHORIZATION", ""):
                return price_list
            return original(dispatcher, environ)

        return get_application

    return replace


class _PriceList:
    """A WSGI application that serves the Pricing API."""

    def __init__(self, prices: SimulatedPriceTable, gate: RequestGate, region: str) -> None:
        self._gate = gate
        self._region = region
        self._prices = prices
        self._products = lru_cache(maxsize=1)(self._matching)  # callers read all pages of a query

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        operation = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        with self._gate.lock:
            try:
                if error := self._gate.injected_error(operation):
                    raise error
                response = _json_response(self._response_body(operation, json.loads(request.get_data() or b"{}")))
            except ServiceError as error:
                response = _json_response({"__type": error.code, "message": error.message}, status=400)
        return response(environ, start_response)

    def _response_body(self, operation: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if operation != "GetProducts":
            raise ServiceError(
                "InvalidParameterException", f"the simulation does not support {operation}, only GetProducts"
            )
        query = {name: value for name, value in request.items() if name not in {"NextToken", "MaxResults"}}
        found = self._products(json.dumps(query))
        start = int(request.get("NextToken") or 0)
        end = start + min(int(request.get("MaxResults") or _PRODUCTS_PAGE), _PRODUCTS_PAGE)
        entries = [product.price_list_entry() for product in found[start:end]]
        body = {"FormatVersion": "aws_v1", "PriceList": entries}
        return body | ({"NextToken": str(end)} if end < len(found) else {})

    def _matching(self, query: str) -> list[PricedProduct]:
        return products(self._prices, self._region, json.loads(query), bare_metal=_is_bare_metal)


def _is_bare_metal(instance_type: str) -> bool:
    return bool(INSTANCE_TYPES.get(instance_type, {}).get("BareMetal", False))


def _json_response(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(body), status=status, content_type="application/x-amz-json-1.1")
