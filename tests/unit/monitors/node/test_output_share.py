from __future__ import annotations

import numpy as np
import pytest

from rechannel.monitors.node.output_share import choose_outputs
from rechannel.wire.measurements import MapOutput


def outputs(count: int, sizes: int, first: int = 0) -> list[MapOutput]:
    same = [1] * sizes
    return [MapOutput("app", "1", 1, first + task, same) for task in range(count)]


def test_all_outputs_are_sent_while_they_are_few() -> None:
    few = outputs(20, 50)
    assert choose_outputs(few, 1000) == few
    assert choose_outputs([], 1000) == []
    empty = outputs(3, 0)
    assert choose_outputs(empty, 1) == empty


@pytest.mark.parametrize("sizes", [1, 7, 100, 4000])
def test_a_share_is_held_on_average(sizes: int) -> None:
    windows = 400
    sent = [sum(it.partitions for it in choose_outputs(outputs(2000, sizes, n * 2000), 1000)) for n in range(windows)]
    assert sum(sent) / windows == pytest.approx(1000, rel=0.1)


def test_small_shuffles_have_the_same_chance_as_large_ones() -> None:
    both = [*outputs(5000, 4000), *outputs(5000, 10, 5000)]
    chosen = choose_outputs(both, 4_010_000)
    assert len(chosen) == pytest.approx(2000, rel=0.1)
    assert sum(output.partitions == 10 for output in chosen) == pytest.approx(1000, rel=0.15)


def test_the_choice_is_spread_over_the_tasks_and_differs_from_batch_to_batch() -> None:
    batches = [[it.map_task % 610 for it in choose_outputs(outputs(610, 10, n * 610), 610)] for n in range(20)]
    chosen = np.concatenate(batches)
    assert np.histogram(chosen, bins=10, range=(0, 610))[0].min() > 60
    assert len(set(chosen.tolist())) > 400
