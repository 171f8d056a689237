"""Predictions of batch durations under a placement: cycle formula, replay, and the fewest moves worth making."""
