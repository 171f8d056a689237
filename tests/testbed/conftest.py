from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def skip_loudly(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Skip, and print why at once: a reason alone is only shown when asked for. Nothing to do for the reason ""."""

    def skip(problem: str) -> None:
        if problem:
            with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                print(f"\nNOT TESTED, {problem}")
            pytest.skip(problem)

    return skip
