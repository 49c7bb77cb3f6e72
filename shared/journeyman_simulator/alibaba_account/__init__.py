"""Simulates an Alibaba Cloud account: ECS, VPC, RAM and Container Service (CS), as strict as the services.

`alibaba_account.AlibabaAccount` is the entry point. Its `open_api` is called in this process and in virtual time, for the
fault simulation; `openapi_server.serving` serves the same account to the official SDK. Both check each request with the same
table of actions (`action_table`). Other requests raise a `NotSimulatedError` that names them. Ids are serial numbers, and no
value is random but the Spot prices, which have a seed.
"""

from journeyman_simulator.alibaba_account.alibaba_account import AlibabaAccount, SeededAlibabaAccount

__all__ = ["AlibabaAccount", "SeededAlibabaAccount"]
