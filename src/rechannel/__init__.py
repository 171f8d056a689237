"""Rechannel: an online adaptive rescheduler for PySpark Structured Streaming.

The parts live at the repository's root (``wire/``, ``conf/``, ``monitors/``, ``policies/``,
``migration/``, ``daemon/``) and are imported under this one name. A query joins with one line::

    import rechannel
    rechannel.attach(spark)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rechannel.wire.version import __version__

__all__ = ["__version__", "attach"]

if TYPE_CHECKING:
    from rechannel.migration.link.attach import attach


def __getattr__(name: str) -> Any:
    # attach needs PySpark; the agent and the CLI import this package on nodes that may not want it.
    if name == "attach":
        from rechannel.migration.link.attach import attach

        return attach
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
