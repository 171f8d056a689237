"""The default policy, and the search behind it."""
