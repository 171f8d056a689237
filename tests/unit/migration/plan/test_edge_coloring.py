"""König's theorem on any bipartite multigraph."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rechannel.migration.plan.edge_coloring import color_edges


def degree(sources: np.ndarray, targets: np.ndarray) -> int:
    return int(max(np.bincount(sources).max(initial=0), np.bincount(targets).max(initial=0)))


def check_coloring(colors: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> None:
    """No two edges of one color at one node, and as many colors as the busiest node has edges."""
    for ends in (sources, targets):
        assert len(set(zip(colors.tolist(), ends.tolist(), strict=True))) == len(colors)
    assert set(colors.tolist()) == set(range(degree(sources, targets)))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 9)), max_size=60))
def test_any_edges_take_as_many_colors_as_the_busiest_node(edges: list[tuple[int, int, int]]) -> None:
    sources, targets, sizes = np.array(edges, dtype=int).reshape(-1, 3).T
    check_coloring(color_edges(sources, targets, sizes.astype(float)), sources, targets)


def test_many_edges_are_colored_in_no_time() -> None:
    random = np.random.default_rng(0)
    sources, targets = random.integers(0, 50, (2, 20_000))
    check_coloring(color_edges(sources, targets, random.random(20_000)), sources, targets)
