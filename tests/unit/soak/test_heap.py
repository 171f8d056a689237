from __future__ import annotations

import pytest

from tests.soak.heap import used

SERIAL = """\
 def new generation   total 92160K, used 10K [0x00000000ed400000, 0x00000000f3800000, 0x00000000f3800000)
  eden space 81920K,   0% used [0x00000000ed400000, 0x00000000ed400000, 0x00000000f2400000)
 tenured generation   total 204800K, used 53470K [0x00000000f3800000, 0x0000000100000000, 0x0000000100000000)
   the space 204800K,  26% used [0x00000000f3800000, 0x00000000f6c379f0, 0x00000000f6c37a00, 0x0000000100000000)
 Metaspace       used 8314K, committed 8512K, reserved 1114112K
  class space    used 1079K, committed 1152K, reserved 1048576K
"""
G1 = """\
 garbage-first heap   total 191488K, used 55159K [0x00000000ed400000, 0x0000000100000000)
  region size 1024K, 0 young (0K), 0 survivors (0K)
 Metaspace       used 9103K, committed 9280K, reserved 1114112K
"""


@pytest.mark.parametrize(
    ("text", "size"), [(SERIAL, (10 + 53470) * 1024), (G1, 55159 * 1024), ("Unknown command", None)]
)
def test_the_heap_is_the_sum_of_its_generations(text: str, size: float | None) -> None:
    assert used(text) == size
