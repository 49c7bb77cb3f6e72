"""On-demand prices of ECS from BSS, in the account's currency; an estimate by vCPUs and memory until they were read.

BSS prices up to 100 products a request, and refuses a whole request for one product that it does not know; such products are left
out, and keep their estimates. No API has Spot prices, so a share of the on-demand price stands in for them
(`HuaweiSettings.spot_price_percent`).

Source: BSS API reference, "Querying the Price of a Pay-per-Use Product"; pkg/providers/pricing/pricing.go.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from journeyman.cloud.huawei.flavors import Flavor
from journeyman.cloud.huawei.huawei_errors import error_code, translated
from journeyman.cloud.huawei.huawei_settings import HuaweiSettings
from journeyman.cloud.huawei.rest_api import BSS, RestApi, RestCall
from journeyman.cloud.prices import PriceProvider, PriceSource
from journeyman.errors import CloudProviderError
from journeyman.ports import Clock, Prices

_log = logging.getLogger(__name__)

_PRODUCTS: Final = 100  # of one request
_UNKNOWN_PRODUCT: Final = frozenset({"CBC.6006", "CBC.99006006"})
_NAMED_PRODUCT: Final = re.compile(r"an not find product\W+([A-Za-z0-9_.-]+?)\.linux", re.IGNORECASE)
_PATH: Final = "/v2/bills/ratings/on-demand-resources"
_PER_VCPU: Final = 0.19  # CNY an hour; estimates, of which only the proportions matter
_PER_GIB: Final = 0.035
_PER_GPU: Final = 8.0


def estimated_price(flavor: Flavor) -> float:
    """Return an estimate of a flavor's price per hour, from its vCPUs, memory and GPUs."""
    return round(flavor.vcpus * _PER_VCPU + flavor.memory_mib / 1024 * _PER_GIB + flavor.gpus * _PER_GPU, 4)


def price_provider(
    api: RestApi, settings: HuaweiSettings, flavors: Callable[[], tuple[Flavor, ...]], clock: Clock
) -> PriceProvider:
    """Return the prices of the settings' region.

    Args:
        api: Sends requests to the account.
        settings: The cluster's.
        flavors: Returns the region's flavors; called when prices are read.
        clock: Decides when prices are read again.
    """
    return PriceProvider(
        PriceSource(
            region=settings.region,
            shipped={},
            state=Prices(source="estimate by vCPUs and memory", currency=settings.currency, estimated=True),
            read_spot=lambda: (),
            read_on_demand=lambda: _read_on_demand(api, settings, [flavor.name for flavor in flavors()]),
            on_demand_api="bss:ListOnDemandResourceRatings",
            spot_period=None,
            on_demand_period=settings.on_demand_refresh_period,
        ),
        clock,
    )


def _read_on_demand(api: RestApi, settings: HuaweiSettings, names: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield the price of each flavor that BSS knows. Raises CloudProviderError."""
    if not settings.domain_id:
        text = "prices belong to an account, whose id is unknown: set HUAWEICLOUD_SDK_DOMAIN_ID on the functions"
        raise CloudProviderError(text, region=settings.region)
    remaining = iter(sorted(names))
    while batch := list(islice(remaining, _PRODUCTS)):
        yield from _prices_of(api, settings, batch)


def _prices_of(api: RestApi, settings: HuaweiSettings, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield the prices of at most 100 flavors.

    An error that names no product is narrowed down by halves, so that one unknown flavor takes no others with it.
    """
    known = list(names)
    while known:
        try:
            yield from _rated(api, settings, known)
        except CloudProviderError as error:
            if error_code(error) not in _UNKNOWN_PRODUCT:
                raise
            named = {name for name in _NAMED_PRODUCT.findall(error.message) if name in known}
            _log.info("BSS has no price of %s", ", ".join(sorted(named)) or f"one of {len(known)} flavors")
            if named:
                known = [name for name in known if name not in named]
                continue
            if len(known) > 1:
                half = len(known) // 2
                yield from _prices_of(api, settings, known[:half])
                yield from _prices_of(api, settings, known[half:])
        return


def _rated(api: RestApi, settings: HuaweiSettings, names: Sequence[str]) -> list[tuple[str, float]]:
    products = [
        {
            "id": str(number),
            "cloud_service_type": "hws.service.type.ec2",
            "resource_type": "hws.resource.type.vm",
            "resource_spec": f"{name}.linux",
            "region": settings.region,
            "usage_factor": "Duration",
            "usage_value": 1,
            "usage_measure_id": 4,  # hours
            "subscription_num": 1,
        }
        for number, name in enumerate(names, start=1)
    ]
    body: dict[str, Any] = {"project_id": settings.project_id, "inquiry_precision": 1, "product_infos": products}
    call = RestCall(service=BSS, operation="ListOnDemandResourceRatings", method="POST", path=_PATH, body=body)
    with translated("bss:discount:view"):
        answer = api(call)
    currency = answer.get("currency") or "CNY"
    if currency != settings.currency:
        text = f"BSS has prices in {currency}; set HUAWEICLOUD_CURRENCY={currency} on the functions, then they are used"
        raise CloudProviderError(text, region=settings.region)
    by_id = {str(number): name for number, name in enumerate(names, start=1)}
    rated = ((by_id.get(str(r.get("id"))), r.get("amount")) for r in answer.get("product_rating_results") or ())
    return [(name, float(amount)) for name, amount in rated if name is not None and amount]
