"""What the live comparison runs: streaming queries whose whole input follows from the number of a batch."""
