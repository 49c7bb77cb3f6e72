"""Huawei Cloud: nodes of CCE clusters, through the APIs of CCE, ECS, VPC, BSS and FunctionGraph."""
