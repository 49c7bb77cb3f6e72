"""Serves an AWS account on moto, over AWS's wire protocol and in virtual time, with corrections to moto.

This package imports none of its modules, since importing moto takes over a second. `moto_server.MotoAccount` is the entry
point. Each `…extensions()` function returns the attributes of moto that the account replaces to behave like AWS, with the
reason. `in_process_account` explains why two simulated accounts exist.
"""
