"""Simulates a Huawei Cloud account in one project and region: CCE nodes, ECS, VPC, prices and invocations of functions.

`huawei_account.HuaweiAccount` is the entry point. Its `rest_api` is called in this process and in virtual time, for the fault
simulation; `rest_server.serving` serves the same account to the official SDK. Both find and check each request with the same
table of operations (`rest_operations`). Other requests raise a `NotSimulatedError` that names them. Ids are serial numbers, and
no value is random but the Spot prices, which have a seed.
"""

from journeyman_simulator.huawei_account.huawei_account import HuaweiAccount, SeededHuaweiAccount

__all__ = ["HuaweiAccount", "SeededHuaweiAccount"]
