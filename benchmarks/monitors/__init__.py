"""Cost and accuracy of the monitors, and the load of many of them on one Redis."""
