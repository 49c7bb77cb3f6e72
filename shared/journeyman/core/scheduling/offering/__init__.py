"""What can be had: NodePools with their types and offerings as columns, what daemons take, minValues, reservations."""
