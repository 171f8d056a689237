"""Whether a driver is still heard. Pure.

Executors end with their driver, and with them the figures that agents have of them: what an ended driver leaves behind
looks like silent agents, so this is asked first.
"""

from __future__ import annotations

from rechannel.conf.settings import Settings
from rechannel.daemon.model.snapshot import NotReady

_LEAST = 10.0  # seconds; shorter pauses are those of a busy driver
_REPORTS = 5  # reports that may be missed


def silence(reported: float, settings: Settings, now: float) -> NotReady | None:
    """Say how long a driver has been silent, None where it is heard; ``reported``: time of its link's last report."""
    age = now - reported
    if age <= max(_LEAST, _REPORTS * settings.link.report):
        return None
    words = f"driver last heard {age:.0f} s ago: it has ended, hangs, or does not reach Redis; all figures are of then"
    return NotReady("driver-silent", words, transient=True)
