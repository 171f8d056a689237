"""Unattended runs: the figures of a run, the oracle, and the page."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.live.service.cases import Case, Drift, QueryCase, SlowNode
from benchmarks.live.service.results import BatchLine, DecisionLine
from benchmarks.report.results import ResultFile, read_results
from benchmarks.unattended import __main__ as unattended
from benchmarks.unattended.figures import Best, best_batches, run_figures
from benchmarks.unattended.oracle import Oracle
from benchmarks.unattended.page import page
from benchmarks.unattended.results import WAYS, MoveLine, PhaseRecord, Run, runs, stored
from benchmarks.unattended.run import move_lines, seconds_beside
from benchmarks.unattended.script import Phase, Script
from rechannel.wire.measurements import BatchReport, StageRun, TaskRow
from rechannel.wire.messages import MoveTransition
from testbed.stack import StackError

# -- a run --


def script() -> Script:
    query = QueryCase(name="q", rows=[40, 20, 20], drift=Drift(batch=4, order=[1, 0, 2]))
    phases = [
        Phase(kind="start", batch=0, speeds=[1.0] * 2, queries=["q"]),
        Phase(kind="drift", batch=4, speeds=[1.0] * 2, queries=["q"]),
        Phase(kind="steady", batch=8, speeds=[1.0] * 2, queries=["q"]),
        Phase(kind="lost", batch=12, speeds=[1.0] * 2, queries=["q"], executor=1),
        Phase(kind="joined", batch=16, speeds=[1.0] * 3, queries=["q"]),
        Phase(kind="drained", batch=20, speeds=[1.0] * 2, queries=["q"], executor=0),
    ]
    case = Case(seed=3, executors=2, cores=1, service_ms=25, queries=[query])
    return Script(seed=3, minutes=1.0, case=case, phases=phases, end=24)


def decision(name: str, at: float, **other: Any) -> DecisionLine:
    fields = {"trigger": "timeout", "outcome": "applied", "reason": "ok", "sentence": "s", "moves": 1} | other
    return DecisionLine(decision=name, at=at, **fields)


def run(way: str = "adaptive", **other: Any) -> Run:
    """Return a run back to back; the event of phase n strikes at 1000 + 10 n."""
    count = 5 if way == "none" else 6
    cycles = [[2.0] * 5, [2.5] * 4, [2.0] * 5, [3.1, 2.3, 2.3, 2.3], [2.0] * 5, [2.0] * 5]
    durations = list(itertools.chain(*cycles[:count]))
    begins = itertools.accumulate(durations, initial=1000.0)
    # The first batch after the loss begins late, as after a restart.
    late = [0.5 * (seconds == 3.1) for seconds in durations]
    batches = [
        BatchLine("q", number, begin + pause, seconds - pause)
        for number, (begin, pause, seconds) in enumerate(zip(begins, late, durations, strict=False))
    ]
    fields: dict[str, Any] = {
        "script": script(),
        "way": way,
        "phases": [PhaseRecord(at=1000.0 + 10 * phase) for phase in range(count)],
        "ended": 1000.0 + 10 * count,
        "batches": [BatchLine("q", -1, 990.0, 10.0), *batches],
        "exact": True,
        "task_overhead": 0.0,
        "beside": 0.5,
        "asleep": 0.9,
    }
    if way != "none":
        fields["decisions"] = [
            decision("d0", 1001.0, outcome="refused", moves=0),
            decision("d1", 1014.0, trigger="imbalance"),
            decision("d2", 1023.0, verdict="regressed"),
            decision("d3", 1036.0, trigger="rollback", rollback_of="d2"),
        ]
        fields["moves"] = [
            MoveLine("d1", "q", 0, "0", "1", 1014.1, 1017.0, True),
            MoveLine("d1", "q", 1, "0", "1", 1014.1, 1021.0, True),
            MoveLine("d2", "q", 2, "0", "1", 1023.0, 1024.0, True),
            MoveLine("link-1", "q", 2, "2", "1", 1033.5, 1034.0, False),
            MoveLine("d3", "q", 2, "1", "0", 1036.0, 1038.0, True),
        ]
    return Run(**fields | other)


BEST = [Best(1.5, 1.0, 0.0)] * 6  # of `run`


def test_the_best_batch_is_the_optimum_of_the_phase() -> None:
    # Seconds of 1, 0.5 and 0.5: one on each of two executors, and no more on three since one partition has all of it.
    assert [best.batch for best in best_batches(script(), [run()])] == pytest.approx([1.5] * 6)
    slow = run("none", task_overhead=0.1, beside=0.7)
    assert [best.batch for best in best_batches(script(), [slow])] == pytest.approx([1.9, 1.9, 1.9, 1.9, 1.8, 1.9])
    assert best_batches(script(), [slow, run(), run(error="it broke", beside=0.0)]) == BEST


def test_a_way_reacts_to_an_event_and_settles() -> None:
    figures = run_figures(run(), BEST)
    start, drift, steady, lost, joined, drained = figures.phases
    assert (start.reacted, start.limit, start.first_move, start.settled) == (None, None, None, None)
    assert drift.reacted == 4.0
    assert drift.first_move == pytest.approx(4.1)
    assert drift.settled == 11.0, "the last move lands in the next phase"
    assert (drift.migrations, drift.spreads, drift.moves) == (1, 0, 2)
    assert (steady.reacted, steady.limit, steady.first_move, steady.settled) == (None, None, 3.0, 4.0)
    assert (lost.reacted, lost.first_move) == (3.5, 3.5), "the link moves first"
    assert lost.settled == 8.0, "the move that lands is the other one"
    assert (lost.migrations, lost.spreads, lost.moves) == (1, 1, 2)
    assert (joined.reacted, joined.first_move, joined.moves) == (None, None, 0)
    assert figures.events == [drift, lost, joined], "Spark as it is has no drain"
    assert [phase.in_time for phase in (drift, lost, joined, drained)] == [True, True, False, False]
    assert all(phase.reacted is None for phase in run_figures(run("none", decisions=run().decisions), BEST).phases)


@pytest.mark.parametrize(
    ("reacted", "line"),
    [
        (2.0, {"trigger": "overload", "outcome": "refused", "reason": "gate", "moves": 0}),
        (2.0, {"trigger": "imbalance", "outcome": "planned", "reason": "nothing-to-do", "moves": 0}),
        (2.0, {"trigger": "executors"}),
        (2.0, {"trigger": "operator"}),
        (None, {"trigger": "operator", "outcome": "refused", "reason": "stores-unknown", "moves": 0}),
        (None, {"trigger": "imbalance", "outcome": "not-ready", "reason": "unexplained", "moves": 0}),
        (None, {"trigger": "timeout"}),
        (None, {"trigger": "continuation"}),
        (None, {"trigger": "rollback", "rollback_of": "d2"}),
    ],
)
def test_decisions_that_are_reactions(reacted: float | None, line: dict[str, Any]) -> None:
    alone = run(decisions=[decision("d9", 1012.0, **line)], moves=[])
    assert run_figures(alone, BEST).phases[1].reacted == reacted


@pytest.mark.parametrize(("placement", "gain"), [([0, 0, 1], 1 / 3), ([1, 0, 1], 0.0), (None, None)])
def test_a_reaction_is_due_where_another_placement_is_worth_it(placement: list[int] | None, gain: float | None) -> None:
    # The drift's seconds are 0.5, 1 and 0.5.
    records = run().phases
    records[0].placement = [placement] if placement else []
    drift = run_figures(run(phases=records), BEST).phases[1]
    assert drift.to_gain == (gain if gain is None else pytest.approx(gain))
    assert drift.asks == (gain != 0.0)


def test_a_node_that_joins_is_there_once_its_executor_is() -> None:
    records = run().phases
    records[4].came = 1043.0
    figures = run_figures(run(phases=records, decisions=[decision("d9", 1045.5, trigger="executors")]), BEST)
    assert figures.phases[4].reacted == 2.5


def test_a_node_is_slow_from_the_first_slow_batch_of_the_last_query() -> None:
    replace, one = msgspec.structs.replace, script()
    queries = [replace(one.case.queries[0], drift=None), QueryCase(name="r", rows=[40], begun=3)]
    phases = [replace(phase, queries=["q", "r"]) for phase in one.phases]
    phases[1] = replace(phases[1], kind="slowed", executor=1, speeds=[1.0, 0.5])
    slow = SlowNode(batch=4, executor=1, times=2.0)
    pair = replace(one, case=replace(one.case, queries=queries, slow=slow), phases=phases)
    own = [BatchLine("r", number, 1000.0 + 13 * number, 13.0) for number in range(4)]
    alone = run(script=pair, batches=[*run().batches, *own], decisions=[decision("d9", 1014.0, trigger="imbalance")])
    assert run_figures(alone, BEST).phases[1].reacted == pytest.approx(1.0), "its batch 1 began at 1013"


def test_the_limit_is_ten_seconds_or_three_batches_of_the_affected_queries() -> None:
    assert [phase.limit for phase in run_figures(run(), BEST).phases] == [None, 10.0, None, 10.0, 10.0, 10.0]
    one = script()
    queries = [*one.case.queries, QueryCase(name="r", rows=[40])]
    phases = [msgspec.structs.replace(phase, queries=["q", "r"]) for phase in one.phases]
    pair = msgspec.structs.replace(one, case=msgspec.structs.replace(one.case, queries=queries), phases=phases)
    slow = [BatchLine("r", number, 1000.0 + 5.0 * number, 5.0) for number in range(12)]
    lines = [*(line for line in run().batches if line.batch % 5 == 4), *slow]
    limits = [phase.limit for phase in run_figures(run(script=pair, batches=lines), BEST).phases]
    assert limits[1] == pytest.approx(3 * 10.0), "the drift is the first query's: one batch of it, back to back"
    assert limits[3] == pytest.approx(3 * 5.0)
    assert limits[2] is limits[0] is None


def test_regret_is_what_batches_take_over_the_best() -> None:
    figures = run_figures(run(), BEST)
    start, drift, steady, lost, *_ = figures.phases
    assert [phase.batches for phase in figures.phases] == [5, 4, 5, 4, 5, 5]
    assert [phase.regret for phase in (start, drift, steady)] == pytest.approx([2.5, 4.0, 2.5])
    assert lost.regret == pytest.approx(1.6 + 3 * 0.8)
    assert (drift.longest, drift.stretch) == pytest.approx((2.5 / 2.0, 2.5))
    assert lost.longest == pytest.approx(3.1 / 2.0)
    assert [phase.late for phase in figures.phases] == pytest.approx([0, 0, 0, 0.25, 0, 0])
    assert figures.late == pytest.approx(0.05)
    total = 2.5 + 4.0 + 2.5 + 4.0 + 2.5  # the drain's phase is left out
    assert figures.regret == pytest.approx(total)
    assert figures.over_best == pytest.approx((23 * 1.5 + total) / (23 * 1.5))


def test_moves_in_a_steady_phase_are_mistakes() -> None:
    figures = run_figures(run(), BEST)
    assert (figures.needless, figures.regressed, figures.rolled_back) == (1, 1, 1)
    assert figures.cost == pytest.approx(2.0 - 2.5), "one batch, shorter than those before"
    still = run_figures(run("none"), BEST)
    assert len(still.phases) == 5
    assert (still.needless, still.cost, still.regressed) == (0, 0, 0)


def test_two_queries_share_the_regret() -> None:
    one = script()
    queries = [*one.case.queries, QueryCase(name="r", rows=[40])]
    replace = msgspec.structs.replace
    phases = [replace(phase, queries=["q", "r"]) for phase in one.phases]
    twice = replace(one, case=replace(one.case, queries=queries), phases=phases)
    lines = [BatchLine(query, line.batch, line.begin, line.seconds) for line in run().batches for query in ("q", "r")]
    pair = run_figures(run(script=twice, batches=lines), BEST)
    alone = run_figures(run(), BEST).phases
    assert [phase.regret for phase in pair.phases] == pytest.approx([phase.regret for phase in alone])
    assert pair.phases[0].batches == 10


def test_the_journal_says_when_moves_begin_and_end() -> None:
    def line(move: str, after: str, at: float) -> MoveTransition:
        partition = {"move": move, "query": "id", "stage": 0, "partition": 1, "source": "0", "target": "1", "step": 0}
        text = {"before": "", "after": after, "reason": "", "evidence": "", "decision": move.partition(".")[0]}
        return MoveTransition(**partition, **text, batch=3, at=at)

    journal = [
        line("d1.0", "planned", 1.0),
        line("link-2.1", "planned", 1.5),
        line("d1.0", "steered", 2.0),
        line("d1.0", "drained", 3.0),
        line("link-2.1", "abandoned", 4.0),
        line("d1.0", "killed", 9.0),
        line("d3.0", "planned", 9.5),
    ]
    assert move_lines(journal, {"id": "q"}) == [
        MoveLine("d1", "q", 1, "0", "1", 1.0, 3.0, True),
        MoveLine("link-2", "q", 1, "0", "1", 1.5, 4.0, False),
        MoveLine("d3", "q", 1, "0", "1", 9.5),
    ]


def test_what_a_batch_takes_beside_its_stateful_stage() -> None:
    def part(batch: int, stateful: int, *times: tuple[float, float]) -> BatchReport:
        rows = [TaskRow(0, 0, "0", *each, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, 0.0) for each in times]
        stage = StageRun(spark_stage=1, parents=[], stateful_stage=stateful, tasks=rows)
        return BatchReport(query="q", batch=batch, start=10.0, end=13.0, input_rows=1, stages=[stage], duration=3.0)

    reports = [part(1, -1, (10.1, 10.2)), part(1, 0, (10.5, 11.0)), part(1, 0, (11.5, 12.5)), part(2, -1, (10.0, 13.0))]
    assert seconds_beside(reports, 10.0, 13.0) == pytest.approx(1.0)
    assert seconds_beside(reports, 11.0, 13.0) == 0.0


# -- the oracle --


class Placed:
    """A session with one query whose placement takes what is ordered. ``refuses``: so many orders."""

    def __init__(self, placement: list[int], refuses: int = 0) -> None:
        self.hosts = ["h0", "h1"]
        self.placement, self.refuses = placement, refuses
        self.orders: list[dict[tuple[str, int, int], str]] = []
        self.looks = 0

    def executor_numbers(self) -> dict[str, int]:
        return {"7": 1, "5": 0}

    def homes(self) -> list[list[int]]:
        return [self.placement]

    def names(self) -> dict[str, str]:
        return {"id-of-q": "q"}

    def at_rest(self) -> bool:
        return True

    def order_moves(self, targets: dict[tuple[str, int, int], str], reason: str) -> None:
        if self.refuses:
            self.refuses -= 1
            raise StackError("not yet")
        self.orders.append(targets)
        for (_, _, partition), executor in targets.items():
            self.placement[partition] = {"5": 0, "7": 1}[executor]

    def wait(self, what: str, ready: Callable[[], bool], seconds: float, every: float) -> None:
        for _ in range(5):
            if ready():
                return
        raise StackError(what)


@pytest.mark.parametrize("refuses", [0, 2])
def test_the_oracle_orders_the_fewest_moves_to_the_best_placement(refuses: int) -> None:
    pytest.importorskip("highspy")
    oracle, session = Oracle(script()), Placed([0, 1, 0], refuses)  # 1.0 + 0.5 and 0.5 seconds, and 0.1 for each task
    oracle.react(session, script().phases[0])  # type: ignore[arg-type]
    assert session.orders == [{("id-of-q", 0, 2): "7"}]
    oracle.react(session, script().phases[2])  # type: ignore[arg-type]
    assert len(session.orders) == 2, "the drift has made another partition the heaviest"


def test_the_oracle_leaves_a_drain_to_the_policy_and_gives_up_what_is_refused() -> None:
    pytest.importorskip("highspy")
    oracle, session = Oracle(script()), Placed([0, 0, 0], refuses=99)
    oracle.react(session, script().phases[5])  # type: ignore[arg-type]
    assert session.refuses == 99
    oracle.react(session, script().phases[0])  # type: ignore[arg-type]
    assert not session.orders


# -- files and page --


def write(path: Path, *every: Run) -> None:
    ResultFile(path, {each.name: stored(each, {"cores": 2}) for each in every}).save()


def test_a_file_holds_the_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    write(path, run("adaptive"), run("none"))
    results = read_results(path)
    assert runs(results) == [run("none"), run("adaptive")]
    for result in results.values():
        assert [names for names in result.names() if not result.units.keys() & names] == []


def test_the_page_has_every_way_of_every_event() -> None:
    broken = run("even", error="the cluster broke\nand more", exact=False)
    results = {
        each.name: msgspec.structs.replace(stored(each, {}), revision="1234567")
        for each in (run("none"), broken, run())
    }
    text = page(results)
    assert "* `none`: Spark as it is." in text
    assert "## Seed 3: 1q 3p 2x1 back to back FIFO z0" in text
    cells = "50 | - | 15 | 100% | 1.45 | 3 + 1 | 5 | 1 | -0.5 | 5.0% | 1 / 1 | 90% | yes"
    assert f"| adaptive | {cells} | none 3 of 1 min, even 3 of 1 min | 1234567 |" in text
    ratios = "1.00 (1.00 to 1.00) | 100% (100% to 100%)"
    longest = "0.87 (0.87 to 0.87) | 1.33 (1.33 to 1.33)"
    assert f"| adaptive | 1, 1 | {ratios} | 2 of 3 | 3 of 3 | 3 of 3 | 1 | {longest} |" in text
    assert "| drift | adaptive | - | 4 | 10 | 4 | 11 | 1 + 0 / 2 | 1.25 | 2.50 | 1.50 | 4 | 0.0% | 10 |" in text
    assert "| joined | none | - | - | 10 | - | - | 0 + 0 / 0 |" in text
    assert "* `adaptive` reacted in time to 2 of 3 events after which a reaction is due." in text
    assert "none after 1 of them, one after 2, two after 0, more" in " ".join(text.split())
    assert "* `none` reacted" not in text
    assert "| drained | adaptive |" in text
    assert "| drained | none |" not in text
    assert "* `even` was broken off: the cluster broke" in text
    assert "![Batches, events and moves of each variant](figures/unattended-3-1.svg)" in text
    assert "Seed" not in page({})


def test_the_page_has_a_picture_of_each_script(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = {each.name: stored(each, {}) for each in (run("none"), run())}
    picture = tmp_path / "unattended-3-1.svg"
    assert page(results, tmp_path) == page(results)
    drawn = picture.read_text()
    assert drawn.count("joined") == 2
    assert page(results, tmp_path) == page(results)
    assert picture.read_text() == drawn
    assert [path.name for path in tmp_path.iterdir()] == [picture.name]


def test_the_page_compares_only_runs_of_the_same_script() -> None:
    def scripted(way: str, times: float, **other: Any) -> Run:
        case = msgspec.structs.replace(script().case, slow=SlowNode(batch=8, executor=0, times=times))
        return run(way, script=msgspec.structs.replace(script(), case=case, **other))

    every = [scripted("none", 1.5), scripted("even", 1.6, end=23), scripted("adaptive", 1.5), scripted("oracle", 1.6)]
    text = page({each.name: stored(each, {}) for each in every})
    ways = [
        [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if "| yes |" in line]
        for section in text.split("\n## Seed ")[1:]
    ]
    assert ways == [["none", "adaptive"], ["even"], ["oracle"]]
    assert text.count("rows 1.5 times as long\n\nAbout 1 minutes for each variant as planned, 24 batches") == 1
    assert text.count("rows 1.6 times as long\n\nAbout 1 minutes for each variant as planned, 23 batches") == 1
    assert "| adaptive | 50 | - | 15 | 100% |" in text
    assert "| oracle | 50 | 1.00 | 15 | - |" in text
    assert "| oracle | 1, 0 | - | - | 2 of 3 |" in text, "Spark as it is did not run this script"
    assert [f"unattended-3-1{end}.svg" in text for end in ("", "-2", "-3", "-4")] == [True, True, True, False]


def test_what_is_in_the_file_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(*options: str, error: str = "") -> tuple[int, list[str]]:
        """Return the exit code, and the ways that were measured; ``error``: of the way `even`."""
        measured = []

        def measure(_: Path, drawn: Script, way: str) -> Run:
            measured.append(way)
            return run(way, script=drawn, error=error if way == "even" else "")

        monkeypatch.setattr(unattended, "measure", measure)
        monkeypatch.setattr(sys, "argv", ["", "--seed", "4", "--json", str(tmp_path / "runs.json"), *options])
        return unattended.main(), measured

    assert call(error="it broke") == (1, list(WAYS))
    assert call("--resume") == (0, ["even"]), "the one that was broken off"
    assert call("--resume") == (0, [])
    assert call("--resume", "--minutes", "20", "--variants", "none") == (0, ["none"]), "another script"
    assert call("--variants", "none") == (0, ["none"])
    assert len(read_results(tmp_path / "runs.json")) == 6
