"""What the simulated account says that things cost: DescribeSpotPriceHistory and the Pricing API's GetProducts."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

from journeyman_simulator.account.asking import PAGING, Ask, Operation, Operations, paged
from journeyman_simulator.aws.offers import is_wanted, offer, product_attributes
from journeyman_simulator.aws.price_table import PriceTable, SpotPriceQuery
from journeyman_simulator.aws.refusal import RefusedError
from journeyman_simulator.aws.timekeeper import Timekeeper

_OLDEST: Final = timedelta(days=90)  # EC2 keeps Spot prices that long
_LARGEST_PAGE: Final = 100  # of GetProducts


class Prices:
    """A region's price table, as two services tell it."""

    def __init__(self, table: PriceTable, time: Timekeeper, region: str) -> None:
        self._table = table
        self._time = time
        self._region = region

    def ec2_operations(self) -> Operations:
        """Of EC2."""
        accepts = ("AvailabilityZone", "EndTime", "InstanceTypes", "ProductDescriptions", "StartTime", *PAGING)
        return {"DescribeSpotPriceHistory": Operation(self._spot_history, accepts=accepts)}

    def pricing_operations(self) -> Operations:
        """Of the Pricing API."""
        return {"GetProducts": Operation(self._products, requires=("ServiceCode",), accepts=("Filters", *PAGING))}

    def _spot_history(self, ask: Ask) -> dict[str, Any]:
        now = self._time.now()
        query = SpotPriceQuery(
            types=frozenset(ask.get("InstanceTypes", ())),
            zones=frozenset({ask.get("AvailabilityZone")} - {None}),
            products=frozenset(ask.get("ProductDescriptions", ())),
            start=ask.get("StartTime") or now - _OLDEST,
            end=ask.get("EndTime") or now,
        )
        return paged("SpotPriceHistory", list(query.rows(self._table)), ask)

    def _products(self, ask: Ask) -> dict[str, Any]:
        if ask["ServiceCode"] != "AmazonEC2":
            raise RefusedError("InvalidParameterException", f"unknown service {ask['ServiceCode']}")
        wanted = {item["Field"]: item["Value"] for item in ask.get("Filters", ())}
        names = sorted({name for name, _ in self._table.pools()})
        products = (product_attributes(name, self._region, bare_metal=False) for name in names)
        found = [
            json.dumps(offer(product, price))
            for product in products
            if (price := self._table.on_demand(product["instanceType"])) is not None and is_wanted(product, wanted)
        ]
        return {"FormatVersion": "aws_v1", **paged("PriceList", found, ask, _LARGEST_PAGE)}
