from __future__ import annotations

import pytest

from tests.soak.heap import live_bytes

HISTOGRAM = """\
0
 num     #instances         #bytes  class name (module)
-------------------------------------------------------
   1:         22531       54123456  [B (java.base@17.0.15)
   2:           112           5376  org.example.Total
Total        123456       64004096
"""


@pytest.mark.parametrize(("text", "size"), [(HISTOGRAM, 64_004_096), ("Unknown command", None)])
def test_the_last_line_of_a_histogram_has_the_bytes(text: str, size: float | None) -> None:
    assert live_bytes(text) == size
