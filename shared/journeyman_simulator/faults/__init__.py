"""Deterministic fault simulation, in the manner of FoundationDB's: scenarios that a seed reproduces exactly.

A scenario (`fault_scenario`) is data: the setup, the operations of people and the cloud, and the faults of calls and messages.
The deployed handlers run it on an in-memory cluster and account under virtual time. `fault_injection` decides at each outside
call whether it fails; the checkers in `invariants` observe every write.
"""
