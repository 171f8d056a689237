"""Typed settings, their loading and rendering, and example files."""
