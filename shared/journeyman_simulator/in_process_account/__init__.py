"""An AWS account in this process, without a wire: boto3-shaped clients over plain objects under virtual time.

`account.Account` is the way in. It is small and fast where `journeyman_simulator.moto_account` is complete: what Journeyman asks of AWS is
answered, with botocore's exceptions, and anything else is a `NotSimulatedError` that names it. Ids are serial numbers,
time is the clock's, nothing is random. Contract tests hold both accounts to the same behaviour.
"""
