"""Commands that the simulator adds to `journeyman`."""
