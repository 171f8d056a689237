"""What the controller shows of itself: status, metrics, HTTP."""
