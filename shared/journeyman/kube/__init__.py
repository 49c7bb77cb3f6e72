"""The real API server: access, fast reads, writes, the Lease. Nothing here imports the `kubernetes` package's typed APIs."""
