"""Schedulers of the literature, one a module, faithful where their source speaks.

What may live here: the same as in ``rechannel.policies``. Every deviation from a source is stated where it is made.
Each module holds a ``FunctionPolicy`` that the registry lists.
"""
