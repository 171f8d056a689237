"""The pure parts of the migration benchmark: rows, placements, input, checkpoint files, overlap."""

from __future__ import annotations

import itertools
import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.migration.checkpoint import to_load
from benchmarks.migration.matrix import FACTORS, PARTITIONS, QUICK, Row, cover, moved, rows, uncovered
from benchmarks.migration.overlap import Span, overlap, spans
from benchmarks.migration.placements import balanced, differences, shifted
from benchmarks.migration.variants import VARIANTS, variants_for
from benchmarks.migration.workload import STRIDE, Input

EXECUTORS = ["0", "1", "2", "3"]


@pytest.mark.parametrize("slow_disk", [True, False])
def test_every_two_values_of_two_factors_meet_in_some_row(slow_disk: bool) -> None:
    result = rows(quick=False, slow_disk=slow_disk)
    factors = FACTORS if slow_disk else FACTORS | {"disk": ("local",)}
    cases = [{name: getattr(row, name) for name in factors} for row in result]
    assert not uncovered(cases, factors)
    assert len(result) == 12  # no fewer can have every number of keys with every share
    assert len({row.name for row in result}) == len(result)


def test_missing_pairs_are_listed() -> None:
    factors = {"a": (1, 2), "b": (3, 4)}
    assert uncovered([{"a": 1, "b": 3}, {"a": 2, "b": 3}, {"a": 2, "b": 4}], factors) == {(("a", 1), ("b", 4))}
    assert len(cover(factors)) == 4


def test_quick_rows_stay_on_the_local_disk_where_there_is_no_slow_one() -> None:
    assert {row.disk for row in rows(quick=True, slow_disk=False)} == {"local"}
    assert rows(quick=True, slow_disk=True) == list(QUICK)


@pytest.mark.parametrize(("share", "count"), [(0.0, 1), (0.25, 3), (1.0, PARTITIONS)])
def test_a_share_is_a_number_of_partitions(share: float, count: int) -> None:
    assert moved(share) == count
    assert Row(1_000_000, share, "HDFS-backed", "local").name == f"1M-hdfs-{count}of{PARTITIONS}-local"


def test_three_moves_take_two_steps_since_one_executor_gives_two() -> None:
    here = dict(enumerate("01230123012"))
    there = shifted(here, EXECUTORS, 3)
    assert sorted(Counter(here[partition] for partition in differences(here, there)).values()) == [1, 2]


def test_a_single_partition_has_one_variant_of_moving() -> None:
    assert [variant.name for variant in variants_for(1)] == ["live", "restart"]
    assert variants_for(3) == variants_for(PARTITIONS) == VARIANTS


@pytest.mark.parametrize("share", FACTORS["share"])
def test_moving_leaves_the_counts_as_they_were(share: float) -> None:
    here = balanced(dict.fromkeys(range(PARTITIONS), "2"), EXECUTORS)
    there = shifted(here, EXECUTORS, moved(share))
    assert sorted(Counter(here.values()).values()) == sorted(Counter(there.values()).values()) == [2, 3, 3, 3]
    assert len(differences(here, there)) == moved(share)


def test_balancing_makes_few_moves_and_uses_known_executors_only() -> None:
    even: dict[int, str] = dict(enumerate("01230123012"))
    assert balanced(even, EXECUTORS) == even
    result = balanced(even | {3: "gone", 7: "gone"}, EXECUTORS)
    assert differences(even, result) == {}


def test_an_executor_cannot_give_what_it_does_not_hold() -> None:
    with pytest.raises(ValueError, match="no further partition"):
        shifted({0: "0"}, EXECUTORS, 2)


@pytest.mark.parametrize(("keys", "count", "preload"), [(10, 4, 3), (20, 7, 2), (10, 25, 1)])
def test_the_expected_counts_and_sums_are_those_of_the_input_written_out(keys: int, count: int, preload: int) -> None:
    arguments, batches = Input(keys, count, preload), preload + 5
    target = {key: [1, 0] for key in range(keys)}
    for number in range((batches - preload) * count):
        target[number * STRIDE % keys][0] += 1
        target[number * STRIDE % keys][1] += number
    assert [arguments.expected(key, batches) for key in range(keys)] == [tuple(pair) for pair in target.values()]
    assert arguments.total(batches) == sum(pair[0] for pair in target.values())
    assert sum(arguments.size(batch) for batch in range(batches)) == arguments.total(batches)


@pytest.mark.parametrize("keys", FACTORS["keys"])
def test_the_stride_reaches_every_key(keys: int) -> None:
    arguments = Input(keys, 1, 1)
    assert arguments.inverse * STRIDE % keys == 1


def test_the_newest_snapshot_and_later_changes_are_to_load(tmp_path: Path) -> None:
    directory = tmp_path / "0" / "3"
    directory.mkdir(parents=True)
    sizes = {"1.delta": 10, "2.snapshot": 100, "2.delta": 20, "3.delta": 30, "4.delta": 40, ".4.delta.crc": 1}
    for name, size in sizes.items():
        (directory / name).write_bytes(b"x" * size)
    assert to_load(tmp_path, 3) == 170
    assert to_load(tmp_path, 4) == 0


def test_of_rocksdb_the_files_named_in_the_archive_are_to_load(tmp_path: Path) -> None:
    directory = tmp_path / "0" / "0"
    directory.mkdir(parents=True)
    with zipfile.ZipFile(directory / "7.zip", "w") as archive:
        listed = {"sstFiles": [{"sizeBytes": 1000}, {"sizeBytes": 500}], "numKeys": 2}
        archive.writestr("metadata", f"v1\n{json.dumps(listed)}")
    (directory / "8.changelog").write_bytes(b"x" * 50)
    assert to_load(tmp_path, 0) == (directory / "7.zip").stat().st_size + 1550


def journal(steps: str) -> list[dict[str, Any]]:
    """Return lines of moves: of each ``<move><step>``, the times of the states from planned on."""
    states = ("planned", "prepared", "steered", "drained", "killed")
    lines = []
    for text in steps.split(";"):
        move, *times = text.split()
        own = [(state, float(at)) for state, at in zip(states, times, strict=False)]
        lines += [{"move": move[0], "step": int(move[1:]), "after": state, "at": at} for state, at in own]
    return lines


PIPELINED = journal("a0 0 1 1 3 5; b1 0 1.5 3 5 7; c2 0 4 5 7 9")


def test_a_step_waits_for_its_snapshots_only_from_its_turn_on() -> None:
    result = {(span.step, span.stage): (span.begin, span.end) for span in spans(PIPELINED, overlapped=True)}
    assert result[0, "prepare"] == (1.0, 1.0)  # at the first boundary
    assert result[1, "prepare"] == (1.0, 1.5)
    assert result[2, "prepare"] == (3.0, 4.0)  # its turn came when step 0 had landed
    assert result[1, "load"] == (3.0, 5.0)
    assert result[2, "close"] == (7.0, 9.0)


def test_without_overlap_a_step_begins_when_the_one_before_it_is_closed() -> None:
    lines = journal("a0 0 1 1 3 4; b1 0 4.5 5 6 8")
    result = spans(lines, overlapped=False)
    assert (result[3].step, result[3].stage, result[3].begin) == (1, "prepare", 4.0)
    figures = {"total": 7.0, "landed": 5.0, "sum": 6.5, "prepare": 0.5, "load": 3.0, "close": 3.0, "share": 0.0}
    assert overlap(result) == figures


def test_the_share_is_of_the_time_in_which_two_steps_are_under_way() -> None:
    figures = overlap(spans(PIPELINED, overlapped=True))
    assert figures["total"] == 8.0
    assert figures["sum"] > figures["total"]
    assert figures["share"] == pytest.approx((0.5 + 2 + 2) / 8)  # 1 to 1.5, 3 to 5, 5 to 7
    same = [Span(0, "load", 0.0, 2.0), Span(0, "close", 1.0, 2.0)]
    assert overlap(same)["share"] == 0.0


def test_a_step_whose_moves_are_given_up_has_no_stages() -> None:
    lines = journal("a0 0")
    assert spans([*lines, lines[0] | {"after": "abandoned", "at": 1.0}], overlapped=True) == []
    assert overlap([])["total"] == 0.0


def test_a_copy_that_closes_before_the_commit_has_no_negative_time() -> None:
    result = spans(journal("a0 0 1 1 3 3"), overlapped=True)
    assert [span.seconds for span in result] == [0.0, 2.0, 0.0]
    assert all(earlier.end <= later.end for earlier, later in itertools.pairwise(result))
