"""The part of Rechannel inside the Spark driver: it observes, reconciles and steers. It never fails a query."""

from __future__ import annotations

from rechannel.migration.link.loop import Link, attach

__all__ = ["Link", "attach"]
