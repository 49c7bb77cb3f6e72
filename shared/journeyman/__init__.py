"""Journeyman, a serverless, Karpenter-compatible node autoscaler: short functions that events start."""

__version__ = "0.1.0"
