"""Nodes to open: units packed by price, and from each bin the claim with every type that would serve nearly as cheaply."""
