"""What a person types: `journeyman demo`, `journeyman solve`, `journeyman replay`."""
