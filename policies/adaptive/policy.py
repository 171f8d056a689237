"""Default policy ``adaptive``: the shortest batches under the limits, with few moves.

It relieves full executors first, then searches stage by stage (:mod:`rechannel.policies.adaptive.search`), from several
starts where there is time for that, and keeps the placement that is worth its moves. Every answer says how far it is at
most from the best placement there can be. *Light* mode moves only what has to leave and what lifts an executor above a
limit.
"""

from __future__ import annotations

import numpy as np

from rechannel.policies.adaptive.context import SearchContext
from rechannel.policies.adaptive.lower_bounds import certified_bound
from rechannel.policies.adaptive.parameters import AdaptiveParameters
from rechannel.policies.adaptive.search import PlacementSearch
from rechannel.policies.analysis.placement_cost import SATURATED, placement_cost
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective
from rechannel.policies.published.bottleneck import BOTTLENECK
from rechannel.policies.published.even import EVEN
from rechannel.policies.published.stream_classification import STREAM_CLASSIFICATION
from rechannel.policies.published.t_storm import T_STORM

_START_HEURISTICS = (EVEN, BOTTLENECK, STREAM_CLASSIFICATION, T_STORM)


def adaptive(cluster: Cluster, workload: Workload, current: Placement, parameters: AdaptiveParameters) -> PolicyAnswer:
    """Propose the placement with the shortest batches that is worth its moves.

    Batches are measured by :func:`placement_cost`. Partitions on unavailable or unknown executors are placed whatever
    it costs. The notes say what was gained.
    """
    homeless = sum(int((array == UNPLACED).sum()) for array in current.on_available(cluster).values())
    notes = [f"{homeless} partitions had to be placed: their executor is unavailable or unknown"] if homeless else []
    context = SearchContext(cluster, workload, current, parameters)
    relieved = _relieve(context, homeless)
    best = relieved
    if parameters.mode == "full" and parameters.max_moves != 0:
        best = relieved.hill_climb()
        if relieved.is_small:
            best = multi_start(context, best)
        if not best.score().improves(relieved.score(), parameters.min_step):
            best = relieved
    unmoved = relieved if homeless or not relieved.voluntary_moves() else PlacementSearch(context)
    moves, before, after = best.voluntary_moves(), unmoved.cost().stage_time, best.cost().stage_time
    summary = f"{moves} moves: critical paths add up to {after:.2g} s a second instead of {before:.2g}"
    if moves == 0:
        summary = "no moves for balance: none is worth it"
    elif best is relieved:
        summary = f"moves to relieve executors above {parameters.limit:.0%}: {moves}"
    notes.append(f"{summary}; {_optimality_gap(context, best)}")
    return PolicyAnswer(best.placement(), tuple(notes))


def _relieve(context: SearchContext, homeless: int) -> PlacementSearch:
    """Place the homeless partitions and relieve full executors, where that helps."""
    search = PlacementSearch(context)
    search.sweep(thorough=False)
    if homeless or not search.voluntary_moves():
        return search
    unmoved = PlacementSearch(context)
    # Without a gain, what left one full executor only filled another.
    return search if search.cost().eases_limits(unmoved.cost()) else unmoved


def multi_start(context: SearchContext, best: PlacementSearch) -> PlacementSearch:
    """Search from other starts, and return the best search that keeps within ``max_moves``.

    Where executors are nearly full, a stage may be held up by another one that has not moved yet: so one search starts
    with nothing placed. Where stages depend on each other, one starts from the best placement of other policies, and
    a local search over all stages follows.
    """
    parameters = context.parameters
    max_moves = np.inf if parameters.max_moves is None else parameters.max_moves
    nowhere = Placement({key: np.full_like(array, UNPLACED) for key, array in context.current.assignments.items()})
    searches = [PlacementSearch(context, nowhere).hill_climb()]
    if best.coupled or best.near_capacity:
        for heuristic in _START_HEURISTICS:
            start = heuristic.place(context.cluster, context.workload, context.current).placement
            searches.append(PlacementSearch(context, start))
        nearest = min(searches[1:], key=PlacementSearch.score)
        if nearest.score().improves(best.score(), 0.0):
            searches.append(nearest.hill_climb())
    for search in searches:
        if search.voluntary_moves() <= max_moves and search.score().improves(best.score(), parameters.min_step):
            best = search
    if best.coupled:
        refined = best.local_search()
        if refined.voluntary_moves() <= max_moves and refined.score().improves(best.score(), 0.0):
            return refined
    return best


def _optimality_gap(context: SearchContext, search: PlacementSearch) -> str:
    bound = certified_bound(context.cluster, context.workload)
    if search.saturates:
        return f"how far it is from the best is not certified: an executor is above {SATURATED:.0%}"
    if bound <= 0:
        return "nothing has any work"
    return f"at most {search.cost().stage_time / bound - 1:.2%} above what no placement can beat"


def _objective(cluster: Cluster, workload: Workload, placement: Placement, parameters: AdaptiveParameters) -> Objective:
    """Return :func:`placement_cost` under the limit of the parameters."""
    return placement_cost(cluster, workload, placement, parameters.limit)


ADAPTIVE = FunctionPolicy(
    name="adaptive",
    scheduler=adaptive,
    measure=_objective,
    parameters=AdaptiveParameters,
    summary="The shortest batches under memory and saturation limits, with few moves.",
    source="Rechannel's own",
)
