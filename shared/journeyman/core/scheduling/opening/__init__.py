"""Nodes to open: units packed by price, and from each bin a claim with the types that would serve nearly as cheaply."""
