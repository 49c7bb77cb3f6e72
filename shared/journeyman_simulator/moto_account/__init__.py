"""An AWS account on moto behind AWS's wire protocol, on virtual time, with moto's gaps filled.

Nothing is imported here: moto takes over a second to import, so import the module you need when you need it.
`moto_server.MotoAccount` is the entry point; each `…extensions()` function lists places where moto is made to behave as AWS
does, with the reason. `in_process_account` says why there are two simulated accounts.
"""
