"""Rules between pods over more than one node: each class gets its zones, capacity types, or whatever they are about."""
