from __future__ import annotations

import numpy as np
import pytest

from rechannel.monitors.node.output_share import OutputShare
from rechannel.wire.measurements import MapOutput


def outputs(count: int, sizes: int, first: int = 0) -> list[MapOutput]:
    return [MapOutput("app", "1", 1, first + task, [task] * sizes) for task in range(count)]


def test_all_outputs_are_sent_while_they_are_few() -> None:
    share = OutputShare(1000)
    assert {output.map_task for output in share.choose(outputs(20, 50))} == set(range(20))


@pytest.mark.parametrize("sizes", [1, 7, 100, 250, 4000])
def test_a_share_is_held_on_average(sizes: int) -> None:
    share, windows = OutputShare(1000), 200
    sent = [sum(output.partitions for output in share.choose(outputs(2000, sizes, n * 2000))) for n in range(windows)]
    assert sum(sent) / windows == pytest.approx(1000, rel=0.05)
    assert max(sent) < 1000 + sizes


def test_the_choice_is_spread_over_the_tasks() -> None:
    chosen = [output.map_task for output in OutputShare(1000).choose(outputs(1000, 10))]
    assert len(set(chosen)) == 100
    assert np.histogram(chosen, bins=10, range=(0, 1000))[0].min() >= 5
    assert len({task % 4 for task in chosen}) == 4


def test_a_debt_ends_when_the_share_grows() -> None:
    share = OutputShare(1)
    assert len(share.choose(outputs(3, 4000))) == 1
    assert share.choose(outputs(3, 4000)) == []
    share.window_sizes = 100_000
    assert len(share.choose(outputs(3, 4000))) == 3
