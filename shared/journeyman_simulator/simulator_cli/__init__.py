"""Commands that the simulator contributes to `journeyman`."""
