"""An AWS account in this process, without a wire: boto3-shaped clients over plain objects under virtual time.

`account.InProcessAccount` is the entry point. It implements the requests that Journeyman sends to AWS, with botocore's
exceptions; other requests raise a `NotSimulatedError` that names them. Ids are serial numbers, and nothing is random.

Why there are two simulated accounts: a fault scenario makes 364 requests (mean of seeds 1 to 5). Each takes 0.05 ms here
and 6.7 ms on `moto_account`, so moto alone would take 2.4 s of CPU where the whole scenario takes 0.6 s. The demo, replay and
end-to-end tests need what only moto has: AWS's wire protocol for boto3 and for other processes, EKS, and EC2's whole
catalogue of instance types. The rules that both play are in `cloud_rules`; tests/contract/test_simulated_aws*.py hold both
accounts to the same behaviour and the same errors.
"""
