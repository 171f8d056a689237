"""Predicted batches under a placement, and the fewest moves worth making."""
