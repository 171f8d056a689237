"""Version of this release, in a module that imports nothing of the project."""

__version__ = "0.1.0"
