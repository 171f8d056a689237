"""What the monitors cost, how exact they are, and how many of them one Redis bears."""
