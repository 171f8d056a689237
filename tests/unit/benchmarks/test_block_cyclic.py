"""Classes and steps of a block-cyclic redistribution, against counting and against the coloring of edges."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.policies.block_cyclic import BlockCyclic, class_schedule, edge_schedule

# P, Q, r, s; g; classes as key: (pairs, cost); messages; steps by class; steps by coloring
TABLE = [
    ((5, 5, 4, 6), 10, {0: (5, 4), 2: (5, 4), 4: (5, 2), 8: (5, 2)}, 20, 4, 4),
    ((5, 5, 2, 3), 5, {0: (5, 2), 1: (5, 2), 2: (5, 1), 4: (5, 1)}, 20, 4, 4),
    ((5, 5, 4, 5), 5, dict.fromkeys(range(5), (5, 4)), 25, 25, 5),
    ((3, 5, 4, 3), 3, dict.fromkeys(range(3), (5, 4)), 15, 15, 5),
    ((5, 4, 4, 5), 20, None, 8, 8, 2),
    ((4, 6, 3, 4), 12, None, 12, 12, 4),
    ((16, 16, 3, 5), 16, None, 112, 7, 7),
]


@pytest.mark.parametrize(("sizes", "g", "classes", "messages", "by_class", "by_coloring"), TABLE, ids=str)
def test_worked_redistributions(sizes, g, classes, messages, by_class, by_coloring):
    layout = BlockCyclic(*sizes)
    assert layout.g == g
    if classes is not None:
        assert {one.key: (len(one.pairs), one.cost) for one in layout.classes()} == classes
    sources, targets, tasks = layout.messages()
    assert len(tasks) == messages
    assert class_schedule(layout).length == by_class
    assert edge_schedule(sources, targets, tasks).length == by_coloring


def test_the_steps_of_five_nodes_from_four_to_six_tasks_each():
    """Eight tasks migrate to nodes that hold four each, in sub-clusters of five: four steps, nobody idle."""
    classes = BlockCyclic(5, 5, 4, 6).classes()
    assert {one.key: set(one.pairs) for one in classes} == {
        0: {(0, 0), (1, 4), (2, 3), (3, 2), (4, 1)},
        2: {(0, 3), (1, 2), (2, 1), (3, 0), (4, 4)},
        4: {(0, 1), (1, 0), (2, 4), (3, 3), (4, 2)},
        8: {(0, 2), (1, 1), (2, 0), (3, 4), (4, 3)},
    }
    assert all(set(one.steps) == {0} for one in classes)


def test_classes_have_the_degrees_of_the_closed_forms_and_their_steps_are_one_to_one():
    for sizes in itertools.product(range(1, 6), range(1, 6), range(1, 5), range(1, 5)):
        layout = BlockCyclic(*sizes)
        sources, targets, _ = layout.messages()
        for one in layout.classes():
            ends = np.array(one.pairs)
            assert set(np.unique(ends[:, 0], return_counts=True)[1]) == {layout.source_degree}, sizes
            assert set(np.unique(ends[:, 1], return_counts=True)[1]) == {layout.target_degree}, sizes
        steps = class_schedule(layout).steps
        for nodes in (sources, targets):
            assert len(set(zip(steps.tolist(), nodes.tolist(), strict=True))) == len(steps), "a node is there twice"
        busiest = max(np.bincount(sources).max(), np.bincount(targets).max())
        assert class_schedule(layout).length >= busiest == edge_schedule(sources, targets, np.ones(len(steps))).length


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_layout_is_of_whole_numbers_from_one(wrong):
    with pytest.raises(ValueError, match="before: expected a whole number from 1"):
        BlockCyclic(2, 2, wrong, 1)
