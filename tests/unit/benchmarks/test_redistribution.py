"""Classes and steps of a block-cyclic redistribution, and König's theorem on any messages."""

from __future__ import annotations

import itertools
from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.redistribution import LOCAL, BlockCyclic, Method, Schedule, schedule
from rechannel.migration.plan.edge_coloring import color_edges

SMALL = list(itertools.product(range(1, 7), range(1, 7), range(1, 6), range(1, 6)))


def degree(sources: np.ndarray, targets: np.ndarray) -> int:
    return int(max(np.bincount(sources).max(initial=0), np.bincount(targets).max(initial=0)))


def check_one_to_one(steps: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> None:
    for ends in (sources, targets):
        pairs = [(step, end) for step, end in zip(steps.tolist(), ends.tolist(), strict=True) if step != LOCAL]
        assert len(set(pairs)) == len(pairs), "a node is in one step twice"


# P, Q, r, s; period; g; classes as key: (pairs, cost); messages; steps by class; steps by coloring
TABLE = [
    ((5, 5, 4, 6), 60, 10, {0: (5, 4), 2: (5, 4), 4: (5, 2), 8: (5, 2)}, 20, 4, 4),
    ((5, 5, 2, 3), 30, 5, {0: (5, 2), 1: (5, 2), 2: (5, 1), 4: (5, 1)}, 20, 4, 4),
    ((5, 5, 4, 5), 100, 5, dict.fromkeys(range(5), (5, 4)), 25, 25, 5),
    ((3, 5, 4, 3), 60, 3, dict.fromkeys(range(3), (5, 4)), 15, 15, 5),
    ((5, 4, 4, 5), 20, 20, None, 8, 8, 2),
    ((4, 6, 3, 4), 24, 12, None, 12, 12, 4),
    ((16, 16, 3, 5), 240, 16, None, 112, 7, 7),
]


@pytest.mark.parametrize(
    ("sizes", "period", "g", "classes", "messages", "by_class", "by_coloring"), TABLE, ids=lambda value: str(value)
)
def test_worked_redistributions(
    sizes: tuple[int, int, int, int],
    period: int,
    g: int,
    classes: dict[int, tuple[int, int]] | None,
    messages: int,
    by_class: int,
    by_coloring: int,
) -> None:
    layout = BlockCyclic(*sizes)
    found = layout.classes()
    assert (layout.period, layout.g) == (period, g)
    if classes is not None:
        assert {one.key: (len(one.pairs), one.cost) for one in found} == classes
    sources, targets, tasks = layout.messages()
    assert len(tasks) == messages
    assert sum(one.length for one in found) == by_class
    assert schedule(sources, targets, tasks, method="class", layout=layout).length == by_class
    assert schedule(sources, targets, tasks, method="koenig").length == by_coloring


@pytest.mark.parametrize(
    ("sizes", "count", "pairs"), [((5, 4, 4, 5), 8, 1), ((4, 6, 3, 4), 6, 2), ((16, 16, 3, 5), 7, 16)]
)
def test_classes_of_one_size(sizes: tuple[int, int, int, int], count: int, pairs: int) -> None:
    assert [len(one.pairs) for one in BlockCyclic(*sizes).classes()] == [pairs] * count


def test_the_steps_of_five_nodes_from_four_to_six_tasks_each() -> None:
    """Eight tasks migrate to nodes that hold four each, in sub-clusters of five: four steps, nobody idle."""
    layout = BlockCyclic(5, 5, 4, 6)
    assert layout.is_perfect
    assert {one.key: set(one.pairs) for one in layout.classes()} == {
        0: {(0, 0), (1, 4), (2, 3), (3, 2), (4, 1)},
        2: {(0, 3), (1, 2), (2, 1), (3, 0), (4, 4)},
        4: {(0, 1), (1, 0), (2, 4), (3, 3), (4, 2)},
        8: {(0, 2), (1, 1), (2, 0), (3, 4), (4, 3)},
    }
    assert all(set(one.steps) == {0} for one in layout.classes())


def test_a_fan_out_from_one_node_takes_as_many_steps_as_it_has_targets() -> None:
    done = schedule(np.zeros(4, dtype=int), np.arange(1, 5), np.full(4, 2.0))
    assert (done.length, done.cost) == (4, 8.0)


def test_closed_forms_agree_with_counting_every_task() -> None:
    for sizes in SMALL:
        layout = BlockCyclic(*sizes)
        task = np.arange(layout.period)
        counted = np.zeros((layout.sources, layout.targets), dtype=int)
        np.add.at(counted, (task // layout.before % layout.sources, task // layout.after % layout.targets), 1)
        classes = layout.classes()
        assert len(classes) == layout.class_count, sizes
        sources, targets, tasks = layout.messages()
        assert (counted[sources, targets] == tasks).all() and np.count_nonzero(counted) == len(tasks), sizes
        for one in classes:
            ends = np.array(one.pairs)
            assert set(np.unique(ends[:, 0], return_counts=True)[1]) == {layout.source_degree}, sizes
            assert set(np.unique(ends[:, 1], return_counts=True)[1]) == {layout.target_degree}, sizes
            assert one.length == max(layout.source_degree, layout.target_degree)
            check_one_to_one(np.array(one.steps), ends[:, 0], ends[:, 1])


def test_the_number_of_classes_of_larger_blocks() -> None:
    for nodes, before, after in itertools.product((1, 2, 3, 5, 7, 12, 16), range(1, 12), range(1, 12)):
        layout = BlockCyclic(nodes, nodes + 1, before, after)
        assert sum(layout.cost(key) > 0 for key in range(0, layout.g, layout.h)) == layout.class_count


def test_every_class_is_one_full_step_exactly_where_the_block_sizes_share_nothing_with_the_nodes() -> None:
    cases = list(itertools.product(range(1, 10), range(1, 8), range(1, 8)))
    assert len(cases) == 441
    for nodes, before, after in cases:
        layout = BlockCyclic(nodes, nodes, before, after)
        common = gcd(before, after)
        perfect = gcd(before // common, nodes) == gcd(after // common, nodes) == 1
        classes = layout.classes()
        assert layout.is_perfect == perfect == all(one.length == 1 and len(one.pairs) == nodes for one in classes)
        if perfect:
            sources, targets, _ = layout.messages()
            assert sum(one.length for one in classes) == degree(sources, targets)


def test_a_prime_number_of_nodes_can_always_be_perfect() -> None:
    assert all(BlockCyclic(5, 5, before, after).is_perfect for before in range(1, 5) for after in range(1, 5))


def test_how_often_classes_need_no_more_steps_than_coloring() -> None:
    equal = more = 0
    for sizes in itertools.product(range(1, 9), range(1, 9), range(1, 7), range(1, 7)):
        layout = BlockCyclic(*sizes)
        sources, targets, _ = layout.messages()
        steps, least = sum(one.length for one in layout.classes()), degree(sources, targets)
        assert steps >= least
        equal, more = equal + (steps == least), more + (steps > least)
    assert (equal, more) == (1602, 702)


def test_best_is_no_worse_than_either() -> None:
    for sizes in SMALL[::7]:
        layout = BlockCyclic(*sizes)
        messages = layout.messages()
        methods: tuple[Method, ...] = ("class", "koenig", "best")
        done = {method: schedule(*messages, method=method, layout=layout) for method in methods}
        for one in done.values():
            check_one_to_one(one.steps, *messages[:2])
        assert done["best"].cost == min(done["class"].cost, done["koenig"].cost)
        assert done["best"].method in ("class", "koenig")


multigraphs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 9)), max_size=60)


@settings(deadline=None)
@given(multigraphs, st.booleans())
def test_koenig_any_messages_take_as_many_steps_as_the_busiest_node(
    edges: list[tuple[int, int, int]], exclude_local: bool
) -> None:
    table = np.array(edges, dtype=int).reshape(-1, 3)
    sources, targets, sizes = table.T
    done = schedule(sources, targets, sizes.astype(float), exclude_local=exclude_local)
    local = sources == targets
    kept = ~local if exclude_local else np.ones(len(table), dtype=bool)
    check_one_to_one(done.steps, sources, targets)
    assert ((done.steps == LOCAL) == ~kept).all()
    assert done.length == degree(sources[kept], targets[kept])
    assert set(done.steps[kept].tolist()) == set(range(done.length))
    weights = np.where(local, 0, sizes)
    for step, largest in enumerate(done.largest.tolist()):
        assert largest == weights[done.steps == step].max()
    assert (color_edges(sources, targets, sizes.astype(float)) >= 0).all()


def test_many_messages_are_colored_in_no_time() -> None:
    random = np.random.default_rng(0)
    sources, targets = random.integers(0, 50, (2, 20_000))
    colors = color_edges(sources, targets, random.random(20_000))
    assert colors.max() + 1 == degree(sources, targets)
    check_one_to_one(colors, sources, targets)


def test_what_stays_on_its_node_costs_nothing_and_can_be_left_out() -> None:
    layout = BlockCyclic(3, 3, 2, 2)
    kept: Schedule = schedule(*layout.messages(), method="class", layout=layout)
    assert (kept.length, kept.cost) == (1, 0.0)
    left_out = schedule(*layout.messages(), method="class", layout=layout, exclude_local=True)
    assert (left_out.length, left_out.steps.tolist()) == (0, [LOCAL] * 3)


def test_nothing_to_send() -> None:
    nothing = np.zeros(0, dtype=int)
    assert schedule(nothing, nothing, np.zeros(0)).length == 0
    assert len(color_edges(nothing, nothing, np.zeros(0))) == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sources": np.array([0, -1])}, "sources: expected whole numbers from 0"),
        ({"targets": np.array([0.5, 1.0])}, "targets: expected whole numbers"),
        ({"targets": np.array([1])}, "targets: expected one node for each of 2"),
        ({"sizes": np.array([1.0, np.nan])}, "sizes: must be finite"),
        ({"method": "magic"}, "method: expected class, koenig or best"),
        ({"method": "class"}, "layout: the method 'class' needs"),
        ({"method": "class", "layout": BlockCyclic(1, 2, 1, 1)}, "messages: 1 to 1 stands twice or is none"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_by_name(change: dict[str, object], sentence: str) -> None:
    given = {"sources": np.array([0, 1]), "targets": np.array([0, 1]), "sizes": np.ones(2)} | change
    with pytest.raises(ValueError, match=sentence):
        schedule(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["sources", "targets", "before", "after"])
def test_a_layout_without_nodes_or_blocks_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: expected a whole number from 1, got 0"):
        BlockCyclic(**({"sources": 2, "targets": 2, "before": 2, "after": 2} | {field: 0}))
