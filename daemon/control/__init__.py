"""The control loop of the leading controller, and all of its state."""
