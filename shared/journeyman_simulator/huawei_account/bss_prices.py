"""Implements the prices of the Billing Center (BSS): ListOnDemandResourceRatings.

Restates: BSS API reference, "Querying the price of a pay-per-use product". The answer names the currency once, for all products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from journeyman.cloud.huawei.rest_api import BSS
from journeyman_simulator.cloud_rules.service_errors import ServiceError
from journeyman_simulator.huawei_account.ecs_flavors import FlavorCatalogue
from journeyman_simulator.huawei_account.rest_errors import invalid_request
from journeyman_simulator.huawei_account.rest_operations import OperationHandlers, RestRequest

CURRENCY: Final = "CNY"
_MOST_PRODUCTS: Final = 100
_FIELDS: Final[Mapping[str, type]] = {
    "id": str,
    "cloud_service_type": str,
    "resource_type": str,
    "resource_spec": str,
    "region": str,
    "available_zone": str,
    "usage_factor": str,
    "usage_value": int,
    "usage_measure_id": int,
    "subscription_num": int,
}
_OPTIONAL: Final = frozenset({"available_zone"})
_SERVER: Final = {
    "cloud_service_type": "hws.service.type.ec2",
    "resource_type": "hws.resource.type.vm",
    "usage_factor": "Duration",
}
_HOUR, _YUAN = 4, 1  # measures
_DIGITS: Final = {0: 6, 1: 10}  # by inquiry_precision


class BssPrices:
    """The on-demand prices of servers.

    Args:
        catalogue: The flavors.
        region: The region.
        project_id: The project, which requests name.
        shows_discounts: Whether a caller may see the account's discount (`bss:discount:view`).
    """

    def __init__(
        self, catalogue: FlavorCatalogue, region: str, project_id: str, shows_discounts: Callable[[str], bool]
    ) -> None:
        self._catalogue = catalogue
        self._region = region
        self._project_id = project_id
        self._shows_discounts = shows_discounts
        self.discount = 1.0  # the account's own prices, as a share of the list prices

    def handlers(self) -> OperationHandlers:
        """Return the handler of BSS's operation."""
        return {"ListOnDemandResourceRatings": self._rate}

    def _rate(self, request: RestRequest) -> dict[str, Any]:
        body = request.body
        if not isinstance(body, Mapping):
            raise invalid_request(BSS, "the body is not a JSON object")
        if unknown := sorted(set(body) - {"project_id", "inquiry_precision", "product_infos"}):
            raise invalid_request(BSS, f"the field {unknown[0]} is not known")
        if body.get("project_id") != self._project_id:
            raise invalid_request(BSS, f"project_id {body.get('project_id')!r} is not a project of the account")
        digits = _DIGITS.get(body.get("inquiry_precision", 0))
        if digits is None:
            raise invalid_request(BSS, "inquiry_precision must be 0 or 1")
        products = self._checked(body.get("product_infos"))
        discount = self.discount if self._shows_discounts(request.caller) else 1.0
        results = [self._result(product, digits, discount) for product in products]
        totals = {
            name: round(sum(result[name] for result in results), digits)
            for name in ("amount", "official_website_amount", "discount_amount")
        }
        return {**totals, "measure_id": _YUAN, "currency": CURRENCY, "product_rating_results": results}

    def _checked(self, products: Any) -> list[Mapping[str, Any]]:
        if not isinstance(products, list) or not 1 <= len(products) <= _MOST_PRODUCTS:
            raise invalid_request(BSS, f"product_infos must have 1 to {_MOST_PRODUCTS} products")
        for product in products:
            _check_fields(product)
        ids = [product["id"] for product in products]
        if len(set(ids)) < len(ids):
            raise invalid_request(BSS, "the ids of product_infos must differ")
        return products

    def _result(self, product: Mapping[str, Any], digits: int, discount: float) -> dict[str, Any]:
        hours = product["usage_value"] * product["subscription_num"]
        official = round(self._price(product) * hours, digits)
        amount = round(official * discount, digits)
        return {
            "id": product["id"],
            "product_id": f"00301-{sum(product['resource_spec'].encode()):06d}-0--0",
            "amount": amount,
            "official_website_amount": official,
            "discount_amount": round(official - amount, digits),
            "measure_id": _YUAN,
        }

    def _price(self, product: Mapping[str, Any]) -> float:
        name, _, system = product["resource_spec"].rpartition(".")
        flavor = self._catalogue.flavors.get(name)
        zones = [product["available_zone"]] if product.get("available_zone") else self._catalogue.zones
        is_offered = any(self._catalogue.prices.is_offered(name, zone) for zone in zones)
        is_server = all(product[field] == value for field, value in _SERVER.items())
        if flavor is None or system != "linux" or not is_offered or not is_server or product["region"] != self._region:
            raise ServiceError("CBC.99006006", f"Can not find product {product['resource_spec']}")
        return flavor.price


def _check_fields(product: Any) -> None:
    """Raise ServiceError if a product lacks a field, or has one of a wrong type."""
    if not isinstance(product, Mapping):
        raise invalid_request(BSS, "a product of product_infos is not a JSON object")
    for name, kind in _FIELDS.items():
        value = product.get(name)
        if value is None and name in _OPTIONAL:
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise invalid_request(BSS, f"{name} of a product must be of type {kind.__name__}, not {value!r}")
    if unknown := sorted(set(product) - set(_FIELDS)):
        raise invalid_request(BSS, f"the field {unknown[0]} of a product is not known")
    if product["usage_measure_id"] != _HOUR or product["usage_value"] < 1 or product["subscription_num"] < 1:
        raise invalid_request(BSS, "the simulated prices are per hour: usage_measure_id 4, usage_value 1 or more")
