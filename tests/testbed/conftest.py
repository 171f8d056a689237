from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# benchmarks and examples are no part of the distribution; they are imported from the repository's root.
ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


@pytest.fixture(scope="session")
def skip_loudly(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Skip, and print why at once: a reason alone is only shown when asked for. Nothing to do for the reason ""."""

    def skip(problem: str) -> None:
        if problem:
            with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
                print(f"\nNOT TESTED, {problem}")
            pytest.skip(problem)

    return skip
