"""Simulates an AWS account in this process and in virtual time, behind clients with boto3's interface.

`account.InProcessAccount` is the entry point. It implements the requests that Journeyman sends to AWS, with botocore's
exceptions; other requests raise a `NotSimulatedError` that names them. Ids are serial numbers, and no value is random.

There are two simulated accounts, because a fault scenario makes 364 requests (mean of seeds 1 to 5). Each takes 0.05 ms
here and 6.7 ms on `moto_account`, so moto alone would take 2.4 s of CPU for a scenario that takes 0.6 s. The demo, replay
and end-to-end tests need features that only moto has: AWS's wire protocol for boto3 and for other processes, EKS, and EC2's
complete catalogue of instance types. Both accounts follow the rules in `cloud_rules`, and
tests/contract/test_simulated_aws*.py check that both have the same behaviour and errors.
"""
