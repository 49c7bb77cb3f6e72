"""Signatures of cloud APIs that we call without their SDKs: values in, headers out; no clock, no randomness, no I/O.

On AWS botocore signs. The two others have SDKs that a function should not carry for a handful of requests: measured, Alibaba
Cloud's takes 32 MB and 0.3 s to import, Huawei Cloud's 30 MB and 0.2 s (with the services we need); each signature is a page of code
with a published example, and the tests hold these modules to it.
"""
