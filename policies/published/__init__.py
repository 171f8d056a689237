"""Schedulers of the literature, one a module, faithful wherever their source is specific.

Every deviation from a source is stated where it is made. Each scheduler has a ``FunctionPolicy`` that the registry
lists; ``units`` and ``slots`` are what several of them share, ``closeness`` and ``pairing`` are parts of one.
"""
