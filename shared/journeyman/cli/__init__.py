"""The `journeyman` command and its subcommand `solve`; other packages contribute further subcommands."""
