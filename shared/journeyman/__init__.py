"""Journeyman: Karpenter without the workshop. A node autoscaler made of short functions woken by events."""

__version__ = "0.1.0"
