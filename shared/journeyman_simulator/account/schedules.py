"""The simulated account's EventBridge Scheduler: it keeps definitions; `journeyman_simulator.aws.ticker` fires them."""

from __future__ import annotations

from typing import Any, Final

from journeyman_simulator.account.asking import PAGING, Ask, Operation, Operations, paged
from journeyman_simulator.aws.refusal import RefusedError

_GROUP: Final = "default"
_OPTIONS: Final = ("ActionAfterCompletion", "EndDate", "ScheduleExpressionTimezone", "StartDate", "State")


class Schedules:
    """Definitions by name, in the default group."""

    def __init__(self, region: str, account: str) -> None:
        self._arn = f"arn:aws:scheduler:{region}:{account}:schedule/{_GROUP}/"
        self._known: dict[str, dict[str, Any]] = {}
        self.version = 0  # grows when a schedule may have changed

    def operations(self) -> Operations:
        """What EventBridge Scheduler answers."""
        create = ("Name", "ScheduleExpression", "FlexibleTimeWindow", "Target")
        return {
            "CreateSchedule": Operation(self._create, requires=create, accepts=_OPTIONS),
            "GetSchedule": Operation(self._get, requires=("Name",), accepts=("GroupName",)),
            "ListSchedules": Operation(self._list, accepts=PAGING),
            "DeleteSchedule": Operation(self._delete, requires=("Name",), accepts=("GroupName",)),
        }

    def _create(self, ask: Ask) -> dict[str, Any]:
        name = ask["Name"]
        if name in self._known:
            raise RefusedError("ConflictException", f"Schedule {name} already exists.")
        self.version += 1
        self._known[name] = {"State": "ENABLED", **ask.given, "GroupName": _GROUP, "Arn": self._arn + name}
        return {"ScheduleArn": self._arn + name}

    def _get(self, ask: Ask) -> dict[str, Any]:
        if ask["Name"] not in self._known:
            raise RefusedError("ResourceNotFoundException", f"Schedule {ask['Name']} does not exist.")
        return dict(self._known[ask["Name"]])

    def _list(self, ask: Ask) -> dict[str, Any]:
        told = [{key: known[key] for key in ("Name", "GroupName", "Arn", "State")} for known in self._known.values()]
        return paged("Schedules", told, ask)

    def _delete(self, ask: Ask) -> dict[str, Any]:
        self._get(ask)
        self.version += 1
        del self._known[ask["Name"]]
        return {}
