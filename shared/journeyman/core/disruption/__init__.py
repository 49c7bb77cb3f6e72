"""Voluntary disruption: which nodes to delete or replace, and how a disruption command is executed.

Names and order are those of Karpenter's pkg/controllers/disruption; every function is pure.

::

    what the nodes are     drifted, consolidatable ─► candidates; budgets (and their windows: calendar)
    methods, in order      hibernation, rebalance, emptiness, static_drift, drift, fleet_plan_progress,
    of `controller`        multi_node_consolidation, single_node_consolidation
      rest on              simulation, consolidation, binding_orders; fleet_examination; fleet_planning, fleet_moves
      refused by           circuit_breaker, churn_limits (churn_counts, reversed_consolidations), balanced
                             │
    a Command (commands) ─► stored as a NodeDisruption ─► validation ─► orchestration executes it ─► cleanup
    what people see        blocked (why each node stays), disruption_events, disruption_metrics

Static NodePools (static_nodepools, static_capacity) are scaled by the provision step.
"""
