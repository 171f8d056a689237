"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from rechannel.conf import source

# How long an example takes says more of the box than of the code.
settings.register_profile("rechannel", deadline=None)
settings.load_profile("rechannel")


@pytest.fixture(autouse=True)
def _no_configuration_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PLACES", ())
