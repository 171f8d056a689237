"""Fixtures and hooks of all tests."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

from rechannel.conf import loader, solo_runs

# How long an example takes says more of the box than of the code.
settings.register_profile("rechannel", deadline=None)
settings.load_profile("rechannel")


# A background job and nohup leave these ignored, and children inherit that. A handler that does nothing is not
# inherited: pytest stays as deaf as it was started, while what the tests start has the defaults of a terminal.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "SEARCH_PATH", ())
    monkeypatch.setattr(solo_runs, "live_runs", list)
