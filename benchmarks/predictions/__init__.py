"""Predicted batches against those that came, on simulated clusters whose truth is known."""
