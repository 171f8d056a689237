"""Text that is safe to print, alone and in structures."""

from __future__ import annotations

import pytest

from rechannel.daemon.view.status import DrainState, HotStream
from rechannel.wire.messages import DrainedNode
from rechannel.wire.printable import plain

HOSTILE, SAFE = "a\x1b[2J\tb", "a\ufffd[2J b"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (HOSTILE, SAFE),
        ([HOSTILE, 1, None], [SAFE, 1, None]),
        ({HOSTILE: (HOSTILE,)}, {SAFE: (SAFE,)}),
        (HotStream(HOSTILE, "u", HOSTILE, 1.0, True), HotStream(SAFE, "u", SAFE, 1.0, True)),
        (DrainedNode(node=HOSTILE, since=1.0), DrainedNode(node=SAFE, since=1.0)),
        (DrainState.EMPTY, DrainState.EMPTY),
    ],
)
def test_a_structure_keeps_its_type_and_loses_control_characters(value: object, expected: object) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)
