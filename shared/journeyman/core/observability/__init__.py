"""Gauges of the cluster's current state, with Karpenter's names, computed from a Snapshot when Prometheus scrapes."""
