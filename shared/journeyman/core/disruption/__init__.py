"""Voluntary disruption: which nodes to delete or replace, and how a disruption command is executed.

Names and order are those of Karpenter's pkg/controllers/disruption; every function is pure.

::

    candidates, budgets ─► methods in `controller` (rebalance, emptiness, single-node consolidation)
       ─► a Command (`commands`), stored as a NodeDisruption ─► `validation` ─► `orchestration` executes it
"""
