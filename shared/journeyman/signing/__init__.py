"""Sign and send requests to Alibaba Cloud and Huawei Cloud without their SDKs.

Signing is pure: values in, headers out; no clock, no randomness, no I/O. On AWS botocore signs. The two other clouds' SDKs
are too large for the few requests that a function makes: Alibaba Cloud's takes 32 MB and 0.3 s to import, Huawei Cloud's
30 MB and 0.2 s (with the services needed here). Each signature is a page of code with a published example, which the tests
check these modules against.
"""
