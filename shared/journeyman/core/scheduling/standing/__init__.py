"""Nodes that exist or are on their way: what is free on them, and filling it. Rules about one node alone."""
