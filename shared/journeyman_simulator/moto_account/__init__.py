"""An AWS account on moto behind AWS's wire protocol, on virtual time, with moto's gaps filled.

This package imports none of its modules, because importing moto takes over a second. `moto_server.MotoAccount` is the entry
point; each `…extensions()` function lists the attributes of moto that are replaced to behave as AWS does, with the reason.
`in_process_account` explains why there are two simulated accounts.
"""
