"""Simulates a cluster and a cloud in virtual time, for the demo, event replay and tests. Imports slow packages on use."""
