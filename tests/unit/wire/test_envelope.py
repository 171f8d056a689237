"""Envelopes: a message is decoded as it was encoded, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.wire.envelope import OLDEST_READABLE, SCHEMA, MessageError, body_of, decode, encode
from rechannel.wire.keys import MAX_MESSAGE_BYTES
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.messages import Request
from unit.wire.samples import envelope, sample

WINDOW = envelope(sample(AgentWindow, cores=2), cluster="c")
ENCODED = encode(WINDOW)


def test_a_message_is_decoded_as_it_was_encoded():
    assert decode(ENCODED, cluster="c") == WINDOW


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "malformed", id="empty"),
        pytest.param(b"{}", "malformed", id="no fields"),
        pytest.param(b"[" * 100_000, "malformed", id="deep"),
        pytest.param(b"\xff\xfe", "malformed", id="not text"),
        pytest.param(encode(envelope(schema=1)), f"schema 1; this release reads {SCHEMA}: upgrade", id="older schema"),
        pytest.param(encode(envelope(schema=SCHEMA + 1)), f"schema {SCHEMA + 1}; .*: upgrade the older", id="newer"),
        pytest.param(b'{"schema":99,"shape":"another"}', "schema 99; .*: upgrade", id="newer shape"),
        pytest.param(ENCODED.replace(b"agent-window", b"agent-wonder"), "malformed", id="kind"),
        pytest.param(encode(envelope(cluster="other")), "cluster 'other'", id="cluster"),
        pytest.param(ENCODED.replace(b'"cores":2', b'"cores":"two"'), "malformed", id="type"),
        pytest.param(b" " * (MAX_MESSAGE_BYTES + 1), "exceeds", id="size"),
    ],
)
def test_another_message_is_refused(data, why):
    with pytest.raises(MessageError, match=why):
        decode(data, cluster="c")


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_message_is_refused_or_decoded_whole(data):
    at = data.draw(st.integers(0, len(ENCODED) - 1))
    bad = ENCODED[:at] + data.draw(st.binary(max_size=3)) + ENCODED[at + data.draw(st.integers(0, 3)) :]
    try:
        decode(bad)
    except MessageError:
        return


@pytest.mark.parametrize(
    ("schema", "is_read"), [(1, False), (2, True), (3, True), (4, False)], ids=["old", "one before", "own", "newer"]
)
def test_the_last_two_schemas_are_decoded(monkeypatch, schema, is_read):
    monkeypatch.setattr("rechannel.wire.envelope.SCHEMA", 3)
    message = encode(envelope(schema=schema))
    if is_read:
        assert decode(message).schema == schema
        return
    with pytest.raises(MessageError, match=f"schema {schema}; this release reads 2 to 3: upgrade"):
        decode(message)


def test_no_release_reads_more_than_two_schemas():
    assert max(2, SCHEMA - 1) == OLDEST_READABLE


def test_newer_fields_are_ignored():
    assert decode(ENCODED.replace(b'"cores":2', b'"cores":2,"gpus":4')) == WINDOW


def test_a_body_of_another_kind_is_refused():
    with pytest.raises(MessageError, match="expected Request, got AgentWindow"):
        body_of(WINDOW, Request)
