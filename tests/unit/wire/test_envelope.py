"""Envelopes: what is encoded is decoded again, and nothing else is read at all."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.wire.envelope import OLDEST_READABLE, SCHEMA, EnvelopeFactory, MessageError, body_of, decode, encode
from rechannel.wire.keys import MAX_MESSAGE_BYTES
from rechannel.wire.measurements import AgentWindow, StreamRow
from rechannel.wire.messages import DesiredMove, DesiredPlacement, Request
from rechannel.wire.signing import KeyFileError, SignatureError, Signer, Verifier, make_keys

WINDOW = AgentWindow(
    node="n1",
    start=0.0,
    end=5.0,
    complete=1.0,
    cores=2,
    node_cpu=1.5,
    memory_total=10,
    memory_used=5,
    executors=[],
    streams=[StreamRow("app", "1", 0, 7, [1, 2, 3])],
)


def envelope(body=WINDOW, **changes):
    made = EnvelopeFactory("c", "agent@n1", lambda: 100.0).envelope(body, ttl=10.0)
    return msgspec.structs.replace(made, **changes)


def test_what_is_written_is_read_back():
    assert decode(encode(envelope()), cluster="c") == envelope()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "malformed"),
        (b"{}", "malformed"),
        (b"[" * 100_000, "malformed"),
        (b"\xff\xfe", "malformed"),
        (encode(envelope(schema=1)), f"schema 1; this release reads {SCHEMA}: upgrade"),
        (encode(envelope(schema=SCHEMA + 1)), f"schema {SCHEMA + 1}; .*: upgrade the older side"),
        (b'{"schema":99,"shape":"another"}', "schema 99; .*: upgrade"),
        (encode(envelope()).replace(b"agent-window", b"agent-wonder"), "malformed"),
        (encode(envelope(cluster="other")), "cluster 'other'"),
        (encode(envelope()).replace(b'"cores":2', b'"cores":"two"'), "malformed"),
        (b" " * (MAX_MESSAGE_BYTES + 1), "exceeds"),
    ],
    ids=[
        "empty",
        "no fields",
        "deep",
        "not text",
        "older schema",
        "newer schema",
        "newer shape",
        "kind",
        "cluster",
        "type",
        "size",
    ],
)
def test_a_message_that_is_not_ours_is_refused(data, why):
    with pytest.raises(MessageError, match=why):
        decode(data, cluster="c")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_message_is_refused_or_read_whole(data):
    good = encode(envelope())
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 3)) :]
    try:
        decode(bad)
    except MessageError:
        return


@pytest.mark.parametrize(
    ("schema", "is_read"), [(1, False), (2, True), (3, True), (4, False)], ids=["old", "one before", "own", "newer"]
)
def test_the_last_two_schemas_are_read(monkeypatch, schema, is_read):
    monkeypatch.setattr("rechannel.wire.envelope.SCHEMA", 3)
    message = encode(envelope(schema=schema))
    if is_read:
        assert decode(message).schema == schema
        return
    with pytest.raises(MessageError, match=f"schema {schema}; this release reads 2 to 3: upgrade"):
        decode(message)


def test_no_release_reads_more_than_two_schemas():
    assert max(2, SCHEMA - 1) == OLDEST_READABLE


def test_newer_fields_are_passed_over():
    newer = encode(envelope()).replace(b'"cores":2', b'"cores":2,"gpus":4')
    assert decode(newer) == envelope()


def test_a_body_of_another_kind_is_refused():
    with pytest.raises(MessageError, match="expected Request, got AgentWindow"):
        body_of(envelope(), Request)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return make_keys(tmp_path_factory.mktemp("keys"))


def placement(target: str = "1") -> DesiredPlacement:
    moves = [DesiredMove(move="m", query="q", stage=0, partition=0, source="0", target=target, step=0)]
    return DesiredPlacement(decision="d", runs={"q": "r"}, moves=moves)


def test_a_signature_holds_across_the_wire(keys):
    private, public = keys
    signed = Signer.from_file(private).sign(envelope(placement()))
    Verifier.from_file(public).check(decode(encode(signed)))


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"decision":"d"', b'"decision":"d","why":{"a":[1]}'), (b'"schema":2', b'"schema":2,"region":"north"')],
)
def test_a_signature_covers_what_another_release_put_in(keys, before, after):
    private, public = keys
    verifier, signer = Verifier.from_file(public), Signer.from_file(private)
    newer = encode(envelope(placement())).replace(before, after)
    assert after in newer
    unsigned = newer.removesuffix(b',"signature":""}')
    raw = signer._key.sign(newer)
    message = unsigned + b',"signature":"' + base64.b64encode(raw) + b'"}'
    result = decode(message)
    verifier.check(result)
    assert encode(result) == message, "whoever hands it on hands on what was said"
    for altered in (message.replace(after, before), message.replace(b'"target":"1"', b'"target":"2"')):
        with pytest.raises(SignatureError, match="does not hold"):
            verifier.check(decode(altered))


def test_what_was_said_is_not_anybodys_to_say(keys):
    private, public = keys
    good = encode(Signer.from_file(private).sign(envelope(placement())))
    output = base64.b64encode(good[: good.rindex(b',"signature"')]).decode()
    evil = good.replace(b'"target":"1"', b'"target":"2"')
    for claims in (
        evil[:-1] + b',"raw_bytes":"' + output.encode() + b'"}',
        evil.replace(b',"signature"', b',"raw_bytes":"' + output.encode() + b'","signature"'),
        b'{"raw_bytes":"' + output.encode() + b'",' + evil[1:],
    ):
        with pytest.raises(SignatureError, match="does not hold"):
            Verifier.from_file(public).check(decode(claims))


def test_a_message_that_is_signed_anew_says_what_it_says_now(keys):
    private, public = keys
    signer, verifier = Signer.from_file(private), Verifier.from_file(public)
    result = decode(encode(signer.sign(envelope(placement()))))
    again = decode(encode(signer.sign(msgspec.structs.replace(result, epoch=9))))
    verifier.check(again)
    assert again.epoch == 9


def test_an_unsigned_or_altered_message_is_refused(keys):
    private, public = keys
    verifier, signed = Verifier.from_file(public), Signer.from_file(private).sign(envelope(placement()))
    with pytest.raises(SignatureError, match="unsigned"):
        verifier.check(envelope(placement()))
    for change in (
        {"epoch": 9},
        {"expires": 1e12},
        {"application": "other"},
        {"body": placement("2")},
        {"signature": "!"},
    ):
        with pytest.raises(SignatureError, match="does not hold"):
            verifier.check(msgspec.structs.replace(signed, **change))


def test_keys_are_private_and_never_overwritten(keys, tmp_path):
    private, public = keys
    assert private.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyFileError, match="exists"):
        make_keys(private.parent)
    for path in (public, tmp_path / "none"):
        with pytest.raises(KeyFileError, match=r"signing\.private_key_file"):
            Signer.from_file(path)
