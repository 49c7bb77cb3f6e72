"""Simulates faults deterministically, like FoundationDB's simulation: a seed reproduces its scenario exactly.

A scenario (`fault_scenario`) is data: the setup, the operations of people and the cloud, and the faults of calls and messages.
The deployed handlers run it on an in-memory cluster and account in virtual time. `fault_injection` decides for each call
to the API server or to AWS whether it fails; the checkers in `invariants` check every write.
"""
