"""Rules between settings, and of URLs, ports and TLS."""

from __future__ import annotations

import pytest

from unit.conf.sources import errors_of, load_text


@pytest.mark.parametrize(
    ("variables", "phrase"),
    [
        ({"RESCHEDULE__TIME_ZONE": "Nowhere/At_All"}, "reschedule.time_zone: 'Nowhere/At_All' is not known here"),
        ({"CONTROLLER__LISTEN": "127.0.0.1:65536"}, "listen: 65536 is no port; it must be between 0 and 65535"),
        ({"AGENT__METRICS": "[::1]:99999"}, "agent.metrics: 99999 is no port"),
        ({"CONTROLLER__LEASE": "4"}, "controller.lease: 4 s is too short"),
        ({"REDIS__URL": "redis://:hunter2@h:1/0"}, "redis.password_file"),
        ({"REDIS__URL": "redis://h/0?password=hunter2"}, "redis.password_file"),
        ({"REDIS__URL": "redis://h:port/0"}, "its port"),
        ({"REDIS__URL": "redis://[hunter2"}, "cannot be read as a URL"),
        ({"REDIS__URL": "redis://:hunter2\u2100@host"}, "cannot be read as a URL"),
        ({"REDIS__URL": "redis://h:1/abc"}, "redis.url: what follows the port is no number of a database"),
        ({"REDIS__URL": "sentinel://u:hunter2@a:1?service=m"}, "redis.url: names a user or password"),
        ({"REDIS__TLS_CA_FILE": "/ca"}, "redis.tls_ca_file: is set, but redis.url is no rediss://"),
        ({"REDIS__URL": "rediss://h", "REDIS__TLS_KEY_FILE": "/k"}, "set both, or neither"),
        ({"REDIS__URL": "rediss://h", "REDIS__TLS_CERTIFICATE_FILE": "/c"}, "set both, or neither"),
        ({"REDIS__URL": "rediss://h?ssl_cert_reqs=none"}, "holds options of a client (ssl_cert_reqs)"),
        ({"REDIS__URL": "rediss://h?ssl_check_hostname="}, "holds options of a client (ssl_check_hostname)"),
        ({"REDIS__URL": "redis://h/0?socket_timeout=50&db=1"}, "(socket_timeout); use redis.timeout"),
        ({"REDIS__URL": "unix:///redis.sock?decode_responses=True"}, "holds options of a client (decode_responses)"),
        ({"REDIS__URL": "rediss://joe:hunter2@h"}, "holds a password"),
        ({"REDIS__URL": "rediss://joe@h"}, "redis.url: names a user; use redis.username"),
        ({"REDIS__URL": "rediss:/joe:hunter2@h"}, "'…@h' does not fit; write redis://"),
    ],
)
def test_a_broken_rule_has_a_sentence(variables: dict[str, str], phrase: str) -> None:
    (error,) = errors_of(**variables)
    assert phrase in error


@pytest.mark.parametrize(
    "url",
    ["redis://h:1", "redis://h:1/", "redis://h:1/15", "rediss://h/3", "unix:///run/redis.sock", "unix:///r.sock?db=3"],
)
def test_a_database_is_a_number_or_left_out(url: str) -> None:
    assert load_text(REDIS__URL=url).redis.url == url
