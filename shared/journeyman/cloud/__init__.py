"""Clouds behind `ports.CloudProvider` and `ports.Queue`. They never import each other."""
