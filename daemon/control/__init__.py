"""The control cycle of the leading controller, and all of its state."""
