"""Waits for an executor, shortened for a while in the running application."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rechannel.migration.spark.gateway import LinkError
from rechannel.migration.spark.locality_wait import LocalityWait

WAIT = "spark.locality.wait"


class Conf(dict):
    """A SparkConf as py4j shows it."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def remove(self, key: str) -> None:
        del self[key]


@pytest.mark.parametrize(
    ("before", "meanwhile"),
    [
        pytest.param({}, {WAIT: "1000ms"}, id="Spark's default of three seconds"),
        pytest.param({WAIT: "30s"}, {WAIT: "1000ms"}, id="longer than any batch"),
        pytest.param({WAIT: "500ms"}, {WAIT: "500ms"}, id="shorter"),
        pytest.param({WAIT: "0", f"{WAIT}.process": "1m"}, {WAIT: "0", f"{WAIT}.process": "1000ms"}, id="one level"),
        pytest.param({WAIT: "soon"}, {WAIT: "soon"}, id="unreadable"),
    ],
)
def test_waits_are_shortened_and_given_back(before: dict[str, str], meanwhile: dict[str, str]) -> None:
    conf = Conf(before)
    wait = LocalityWait(SimpleNamespace(conf=lambda: conf))
    for _ in range(2):
        wait.shorten()
        wait.shorten()
        assert conf == meanwhile
        wait.restore()
        wait.restore()
        assert conf == before


def test_a_call_that_fails_late_does_not_make_the_short_wait_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    conf = Conf({WAIT: "30s"})
    wait = LocalityWait(SimpleNamespace(conf=lambda: conf))

    def late(key: str, value: str) -> None:
        conf[key] = value
        raise TimeoutError

    monkeypatch.setattr(conf, "set", late)
    with pytest.raises(LinkError):
        wait.shorten()
    assert wait.is_short
    monkeypatch.undo()
    wait.shorten()
    wait.restore()
    assert (conf, wait.is_short) == ({WAIT: "30s"}, False)
