"""Gauges of a cluster as it stands, under Karpenter's names: functions of a Snapshot, computed when somebody asks.

Nothing is kept and nothing is written for them, so they cost nothing while nobody looks.
"""
