"""Builder of an application's messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.wire.measurements import AgentWindow, BatchReport
from rechannel.wire.messages import LinkReport
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import APP


def messages(
    link: LinkReport,
    batches: Sequence[BatchReport],
    windows: Mapping[str, Sequence[AgentWindow]] | None = None,
) -> ApplicationMessages:
    by_host = {host: tuple(closed) for host, closed in (windows or {}).items()}
    return ApplicationMessages(APP, link, NOW, tuple(batches), by_host)
