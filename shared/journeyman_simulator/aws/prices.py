"""DescribeSpotPriceHistory of the account on moto, and what is offered in a region."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.ec2.responses.spot_instances import SpotInstances

from journeyman_simulator.aws.patching import Patch
from journeyman_simulator.aws.price_table import PriceTable, SpotPriceQuery
from journeyman_simulator.aws.timekeeper import Timekeeper
from journeyman_simulator.aws.wire import ec2_answer

_PAGE = 1000  # DescribeSpotPriceHistory's largest page


def regional_prices(on_demand: Mapping[str, float], region: str, since: datetime, seed: int) -> PriceTable:
    """The prices of what a region offers, as moto's record of EC2 has it."""
    offered = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ())
    classes = ((name, facts.get("SupportedUsageClasses", ())) for name, facts in INSTANCE_TYPES.items())
    return PriceTable(
        on_demand,
        pools=((offer["InstanceType"], offer["Location"]) for offer in offered),
        since=since,
        without_spot={name for name, supported in classes if "spot" not in supported},
        seed=seed,
    )


def patches(table: PriceTable, time: Timekeeper) -> tuple[Patch, ...]:
    """DescribeSpotPriceHistory answers from the table."""
    latest: tuple[Any, list[dict[str, Any]]] = (None, [])  # whoever reads one page reads the next, too

    def rows_for(query: SpotPriceQuery) -> list[dict[str, Any]]:
        nonlocal latest
        if latest[0] != (query, table.version):
            rows = [{**row, "Timestamp": row["Timestamp"].replace(tzinfo=None)} for row in query.rows(table)]
            latest = (query, table.version), rows
        return latest[1]

    def describe_spot_price_history(response: Any) -> str:
        read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
        rows = rows_for(_query(response, time.now()))
        start = int(read("NextToken") or 0)
        end = start + min(int(read("MaxResults") or _PAGE), _PAGE)
        token = str(end) if end < len(rows) else ""
        return ec2_answer("DescribeSpotPriceHistory", {"SpotPriceHistory": rows[start:end], "NextToken": token})

    return (
        Patch(
            owner=SpotInstances,
            name="describe_spot_price_history",
            replace=lambda _: describe_spot_price_history,
            reason="Spot prices are the table's, dated, filtered and paged; moto's are all 0.00001 of 2006",
        ),
    )


def _query(response: Any, now: datetime) -> SpotPriceQuery:
    read = response._get_param  # noqa: SLF001 - moto's way to read a parameter
    filters = response._filters_from_querystring()  # noqa: SLF001 - same
    if unknown := sorted(set(filters) - {"availability-zone", "instance-type", "product-description"}):
        raise EC2ClientError("InvalidParameterValue", f"The filter '{unknown[0]}' is invalid")
    return SpotPriceQuery(
        types={*read("InstanceTypes", []), *filters.get("instance-type", ())},
        zones={*filters.get("availability-zone", ())} | ({read("AvailabilityZone")} - {None}),
        products={*read("ProductDescriptions", []), *filters.get("product-description", ())},
        start=_aware(read("StartTime"), now - timedelta(days=90)),
        end=_aware(read("EndTime"), now),
    )


def _aware(value: Any, default: datetime) -> datetime:
    """A request's time as botocore's parser left it: a naive or aware datetime, or nothing."""
    if value is None:
        return default
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=default.tzinfo)
