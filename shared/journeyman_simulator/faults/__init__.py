"""Deterministic fault simulation, in the manner of FoundationDB's: whole scenarios, told again exactly from a seed.

A scenario (`scenario`) is data: the setting, what people and the cloud do, and what goes wrong with calls and messages. The real
handlers run it on an in-memory cluster and account under virtual time; `injector` decides at each outside call whether it
goes wrong, and `rules` look on at every write. Nothing here knows how a run is composed: that is `runtime.storm`.
"""
