"""The Pricing API's products: on-demand Linux instances in AWS's shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OFFER_TERM, _RATE = "JRTCKXETXF", "6YS6EN2CT7"  # AWS's codes for on-demand terms and hourly rates


def product_attributes(instance_type: str, region: str, *, bare_metal: bool) -> dict[str, str]:
    """What GetProducts can be filtered by."""
    return {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "licenseModel": "No License required",
        # Karpenter asks for shared tenancy, and for bare metal in its own product family with dedicated tenancy.
        "tenancy": "Dedicated" if bare_metal else "Shared",
        "productFamily": "Compute Instance (bare metal)" if bare_metal else "Compute Instance",
        "operation": "RunInstances",
        "servicecode": "AmazonEC2",
        "locationType": "AWS Region",
    }


def is_wanted(product: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    """Whether a product has all the attributes, whatever their case."""
    return all(product.get(field, "").lower() == value.lower() for field, value in wanted.items())


def offer(product: Mapping[str, str], price: float) -> dict[str, Any]:
    """An entry of PriceList: the product and its hourly price in USD."""
    sku = product["instanceType"].upper().replace(".", "").replace("-", "")
    term, rate = f"{sku}.{_OFFER_TERM}", f"{sku}.{_OFFER_TERM}.{_RATE}"
    attributes = {key: value for key, value in product.items() if key != "productFamily"}
    dimension = {
        "rateCode": rate,
        "unit": "Hrs",
        "beginRange": "0",
        "endRange": "Inf",
        "description": f"${price} per On Demand Linux {product['instanceType']} Instance Hour",
        "appliesTo": [],
        "pricePerUnit": {"USD": f"{price:.10f}"},
    }
    return {
        "product": {"sku": sku, "productFamily": product["productFamily"], "attributes": attributes},
        "serviceCode": "AmazonEC2",
        "terms": {
            "OnDemand": {
                term: {
                    "sku": sku,
                    "offerTermCode": _OFFER_TERM,
                    "termAttributes": {},
                    "priceDimensions": {rate: dimension},
                }
            }
        },
    }
