"""Sizes of map outputs on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.wire.envelope import EnvelopeFactory, decode, encode
from rechannel.wire.measurements import AgentWindow, MapOutput
from unit.daemon import fakes


@given(st.lists(st.integers(0, 2**53)))
def test_packed_sizes_are_less_than_one_percent_too_small(sizes: list[int]) -> None:
    packed = MapOutput("app", "0", 1, 2, sizes).with_packed_sizes()
    assert packed.partitions == len(sizes)
    body = fakes.window(0, map_outputs=[packed])
    received = decode(encode(EnvelopeFactory("c", "a").envelope(body, ttl=1.0))).body
    assert isinstance(received, AgentWindow)
    (output,) = received.map_outputs
    assert len(output.read_sizes()) == len(sizes)
    assert all(0.99 * size <= read <= size * (1 + 1e-7) for size, read in zip(sizes, output.read_sizes(), strict=True))


@pytest.mark.parametrize("sizes", [[], [0, 1, 255, 256]])
def test_small_sizes_are_exact_packed_or_not(sizes: list[int]) -> None:
    output = MapOutput("app", "0", 1, 2, sizes)
    assert list(output.read_sizes()) == list(output.with_packed_sizes().read_sizes()) == sizes


@given(st.lists(st.integers(0, 2**53)), st.binary())
def test_any_bytes_are_numbers(sizes: list[int], packed: bytes) -> None:
    output = MapOutput("app", "0", 1, 2, sizes, packed)
    assert len(output.read_sizes()) == output.partitions == (len(packed) // 2 or len(sizes))
    assert output.with_packed_sizes().sizes == ()
