"""URLs of sentinels."""

from __future__ import annotations

import pytest

from rechannel.conf.redis_url import SentinelAddress, sentinel_address


def test_a_sentinel_url_names_hosts_service_and_database() -> None:
    result = sentinel_address("sentinel://a:26379,b:1,c?service=rechannel")
    assert result == SentinelAddress((("a", 26379), ("b", 1), ("c", 26379)), "rechannel", 0)
    assert sentinel_address("sentinel://[::1]:7/3?service=x") == SentinelAddress((("::1", 7),), "x", 3)
    assert sentinel_address("redis://h/0") is None


@pytest.mark.parametrize(
    ("url", "phrase"),
    [
        ("sentinel://a:1,b:2/0", "sentinel://host:port,host:port"),
        ("sentinel://a:1/x?service=m", "sentinel://host:port,host:port"),
        ("sentinel://a:1?service=m&timeout=3", "sentinel://host:port,host:port"),
        ("sentinel://:hunter2\u2100@host/0?service=s", "sentinel://host:port,host:port"),
        ("sentinel://a:1,,b:2?service=m", "'' is no host and port"),
        ("sentinel://a:b?service=m", "'a:b' is no host and port"),
        ("sentinel://a:99999?service=m", "'a:99999' is no host and port"),
        ("sentinel://u:hunter2@a:1?service=m", "redis.sentinel_password_file"),
    ],
)
def test_a_wrong_sentinel_url_is_refused(url: str, phrase: str) -> None:
    with pytest.raises(ValueError, match=phrase) as caught:
        sentinel_address(url)
    assert "hunter2" not in str(caught.value)
