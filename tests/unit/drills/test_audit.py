"""The audit finds lost and doubled rows, and steps of moves that were taken twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.drills import audit


def exact(batches: int) -> dict[int, dict[int, int]]:
    so_far: Counter[int] = Counter()
    written = {}
    for batch in range(batches):
        added = audit.increments(batch)
        so_far += added
        written[batch] = {key: so_far[key] for key in added}
    return written


def line(move: str, after: str, reason: str = "", decision: str = "d") -> dict[str, Any]:
    return {"move": move, "after": after, "reason": reason, "decision": decision}


def test_output_that_is_exact_has_nothing_lost_or_doubled():
    assert audit.compare("counts", exact(5)) == audit.Audit(5, 0, 0)
    assert audit.compare("counts", {}).exact


def test_rows_that_are_missing_are_lost_and_named():
    written = exact(4)
    key = next(iter(written[2]))
    for batch in (2, 3):
        written[batch][key] -= 7
    result = audit.compare("counts", written)
    assert (result.lost, result.doubled) == (7, 0)
    assert [text.split(",")[0] for text in result.wrong] == ["counts: batch 2", "counts: batch 3"]


def test_rows_that_were_counted_twice_are_doubled():
    written = exact(3)
    key = next(iter(written[2]))
    written[2][key] += 5
    result = audit.compare("counts", written)
    assert (result.lost, result.doubled) == (0, 5)
    assert not result.exact


def test_lost_and_doubled_rows_of_different_keys_do_not_cancel():
    written = exact(3)
    one, other = list(written[2])[:2]
    written[2][one] -= 3
    written[2][other] += 2
    result = audit.compare("counts", written)
    assert (result.lost, result.doubled) == (3, 2)


def test_a_batch_that_was_never_written_is_lost_whole():
    written = exact(3)
    del written[1]
    result = audit.compare("counts", written)
    assert result.lost == audit.ROWS_PER_BATCH
    assert result.wrong == ("counts: batch 1 was not written",)


def test_a_mistake_that_heals_later_is_told_though_the_sum_is_right():
    written = exact(3)
    key = next(iter(written[1]))
    written[1][key] += 1
    result = audit.compare("counts", written)
    assert (result.lost, result.doubled, len(result.wrong)) == (0, 0, 1)
    assert not result.exact


def test_a_migration_is_followed_through_the_journal():
    journal = [
        line("d.1", "planned"),
        line("d.1", "steered"),
        line("d.1", "steered"),
        line("d.1", "drained"),
        line("d.2", "abandoned", "target-gone"),
        line("d.3", "planned"),
        line("other.1", "planned", decision="other"),
    ]
    result = audit.migrated(journal, "d", 3)
    assert (result.landed, result.abandoned, result.unsettled) == (1, 1, {"d.3": "planned"})
    assert result.sentence() == "1 of 3 landed, 1 abandoned (target-gone 1), 1 ended with the run"


def test_a_step_that_was_taken_twice_is_named_but_saying_a_steer_again_is_no_step():
    journal = [line("d.1", "steered")] * 3 + [line("d.1", "drained")] * 2
    assert audit.taken_twice(journal) == ["d.1: drained 2 times"]


def test_gaps_between_commits_reach_over_the_ends_of_the_span():
    times = [0.0, 1.0, 2.0, 9.0, 10.0]
    assert audit.longest_gap(times, 3.0, 9.5) == 7.0
    assert audit.longest_gap(times, 3.0, 5.0) == 3.0
    assert audit.longest_gap([], 3.0, 5.0) == 2.0
    assert audit.usual_gap(times, 3.0) == 1.0
    assert audit.usual_gap(times, 0.5) == 0.0
