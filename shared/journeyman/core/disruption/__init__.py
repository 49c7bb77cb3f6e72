"""Which nodes to give back: candidates, budgets, emptiness, consolidation, and the commands that carry it out.

Names and order of work are Karpenter's pkg/controllers/disruption; every function is pure.
"""
