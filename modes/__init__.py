"""One module per mode."""
