"""The errors of the store, by what the caller can do next."""

from __future__ import annotations


class StoreError(RuntimeError):
    """Redis could not do it."""


class StoreUnavailableError(StoreError):
    """Redis is away or too slow; try again later."""


class StoreRefusedError(StoreError):
    """Redis answered no: wrong address, password, rights or version. Trying again will not help."""


class StoreDeposedError(StoreError):
    """The lease is not ours any more, so a leader's write was not made; stand by until it is taken again."""


class StoreForbiddenError(StoreRefusedError):
    """The user we come as has no right to do this."""


class StoreTooLargeError(StoreError):
    """A message is larger than its key may be, and was not written."""
