"""``docs/migration.md`` from the figures alone: the same figures give the same page, failed rows are listed as such.

This module computes the cells; the text is in ``benchmarks/report/templates/migration.md.j2``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.migration.matrix import FACTORS, PARTITIONS, uncovered
from benchmarks.migration.summary import AFTERMATH, CALM, GOAL, row_figures
from benchmarks.migration.variants import AT_ONCE, LIVE, ONE_BY_ONE, RESTART, VARIANTS, variants_for
from benchmarks.report.numbers import amount, or_dash
from benchmarks.report.templates import render as render_template

WITHIN = 0.25  # of the measured value: the goal of a prediction
_MOVING = (LIVE, AT_ONCE, ONE_BY_ONE)
_NOISE = "≈"
_STAGES = ("prepare", "load", "close", "sum", "total")

Row = Mapping[str, Any]


def render(figures: Mapping[str, Any]) -> str:
    """Return the page of the figures that ``python -m benchmarks.migration --json FILE`` leaves."""
    rows = [row_figures(record) for record in figures["rows"] if "row" in record]
    measured = [row for row in rows if row["variants"]]
    cases = [record["row"] for record in figures["rows"] if "row" in record]
    context = {
        **{key: figures[key] for key in ("machine", "settings", "quick", "repeats", "slow_disk_problem")},
        "rows": rows,
        "measured": measured,
        "covered": _all_pairs_covered(cases, local_only=bool(figures["slow_disk_problem"])),
        "variants": VARIANTS,
        "names": [variant.name for variant in VARIANTS],
        "goal": GOAL,
        "within": f"{WITHIN:.0%}",
        "aftermath": AFTERMATH,
        "calm": CALM,
        "noise": _NOISE,
        "partitions": PARTITIONS,
        "short": _summary(measured),
        "peaks": [_peaks(row) for row in measured],
        "extras": [[_name(row), *(_extra(row, variant.name) for variant in VARIANTS)] for row in measured],
        "landings": [_landing(row, name) for row in measured for name in row["variants"]],
        "predictions": _predictions(measured),
        "overlaps": [cells for row in measured if (cells := _overlap(row))],
        "audits": [_audit(row) for row in rows],
    }
    return render_template("migration", context, join=True)


def _all_pairs_covered(cases: Sequence[Row], *, local_only: bool) -> bool:
    factors = FACTORS | {"disk": ("local",)} if local_only else FACTORS
    return not uncovered([{name: case[name] for name in factors} for case in cases], factors)


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the goals and whether they were met."""
    peaks = [(row, row["variants"][LIVE.name]["peak_ratio"][0]) for row in rows if LIVE.name in row["variants"]]
    ratios = [ratio for row in rows if (ratio := _restart_over_live(row)) is not None]
    audits = [row["audit"] for row in rows if row["audit"]]
    return {
        "live": len(peaks),
        "within": sum(peak <= GOAL for _, peak in peaks),
        "missed": [
            f"{_name(row)} ({peak:.2f}, without a move up to {row['quiet_peak_ratio']:.2f}; one load {_load(row)})"
            for row, peak in peaks
            if peak > GOAL
        ],
        "predictions": [
            prediction
            for label, key in (("Longest batch", "peak_error"), ("Time to the last landing", "total_error"))
            if (prediction := _prediction_summary(rows, label, key))["pairs"]
        ],
        "ratios": (min(ratios), median(ratios), max(ratios)) if ratios else None,
        "wrong": sum(not audit["ok"] for audit in audits),
        "audited": len(audits),
        "failed": sum(row["failed"] or 0 for row in rows),
    }


def _prediction_summary(rows: Sequence[Row], label: str, key: str) -> dict[str, Any]:
    errors = [
        (variant is LIVE, abs(row["variants"][variant.name][key][0]) <= WITHIN)
        for row in rows
        for variant in _MOVING
        if key in row["variants"].get(variant.name, {})
    ]
    live = [good for is_live, good in errors if is_live]
    counts = {"good_live": sum(live), "live": len(live), "good": sum(good for _, good in errors), "pairs": len(errors)}
    return {"what": label, **counts}


def _peaks(row: Row) -> list[str]:
    def cell(name: str) -> str:
        value = row["variants"].get(name, {}).get("peak_ratio")
        return _spread(value, "{:.2f}", value[0] <= row["quiet_peak_ratio"]) if value else _absent(row, name)

    cells = [_name(row), f"{row['steady']:.2f} s", f"{row['quiet_peak_ratio']:.2f}", _load(row)]
    return [*cells, *(cell(variant.name) for variant in VARIANTS), or_dash(_restart_over_live(row), "{:.1f}")]


def _extra(row: Row, name: str) -> str:
    figures = row["variants"].get(name)
    if not figures:
        return _absent(row, name)
    return _spread(figures["extra"], "{:.1f} s", abs(figures["extra"][0]) <= 2 * figures["extra_noise"][0])


def _landing(row: Row, name: str) -> list[str]:
    figures = row["variants"][name]
    moves, steps, settled, missed = (
        _spread(figures.get(key), "{:.0f}") for key in ("moves", "steps", "settled", "missed")
    )
    moved = amount(figures["state_bytes"][0]) if "state_bytes" in figures else "all"
    landing = _spread(figures.get("landing"), "{:.1f} s")
    return [_name(row), name, moves, steps, moved, amount(figures["loaded_bytes"][0]), landing, settled, missed]


def _predictions(rows: Sequence[Row]) -> list[list[str]]:
    forms = {
        "predicted_peak": "{:.2f} s",
        "peak": "{:.2f} s",
        "peak_error": "{:+.0%}",
        "predicted_total": "{:.1f} s",
        "landing": "{:.1f} s",
        "total_error": "{:+.0%}",
    }
    return [
        [_name(row), variant.name, *(_spread(figures.get(key), form) for key, form in forms.items())]
        for row in rows
        for variant in _MOVING
        if "predicted_peak" in (figures := row["variants"].get(variant.name, {}))
    ]


def _overlap(row: Row) -> list[str] | None:
    live, single = (row["variants"].get(variant.name, {}) for variant in (LIVE, ONE_BY_ONE))
    if "overlap.total" not in live or "overlap.total" not in single:
        return None
    total = live["overlap.total"][0]
    return [
        _name(row),
        _spread(live["steps"], "{:.0f}"),
        *(_spread(live[f"overlap.{stage}"], "{:.1f} s") for stage in _STAGES),
        _spread(single["overlap.total"], "{:.1f} s"),
        f"{single['overlap.total'][0] / total:.2f}" if total else "-",
        _spread(live["overlap.share"], "{:.0%}"),
    ]


def _audit(row: Row) -> list[str]:
    audit, link = row["audit"], row["link"] or {}
    moving = [row["variants"][variant.name] for variant in _MOVING if variant.name in row["variants"]]
    cells = ["not made"] * 5
    if audit:
        wrong = audit["different"] + audit["unknown"]
        counts = (audit["wanted_rows"], audit["lost"], audit["doubled"], wrong)
        cells = [str(audit["batches"]), *(f"{count:,}" for count in counts)]
    failed = "-" if row["failed"] is None else str(row["failed"])
    abandoned = str(sum(int(figures["abandoned"][2]) for figures in moving))
    problems = "; ".join(row["problems"]) or "none"
    return [_name(row), *cells, failed, abandoned, str(link.get("drifted", "-")), problems]


def _name(row: Row) -> str:
    return str(row["row"]["name"])


def _absent(row: Row, name: str) -> str:
    """Return the cell of a variant without a figure: it was not to be measured, or it failed."""
    return "-" if any(name == variant.name for variant in variants_for(row["row"]["moves"])) else "as live"


def _load(row: Row) -> str:
    return or_dash(row["load"], "{:.2f} s")


def _restart_over_live(row: Row) -> float | None:
    live, restart = (row["variants"].get(variant.name, {}).get("peak") for variant in (LIVE, RESTART))
    return restart[0] / live[0] if live and restart and live[0] > 0 else None


def _spread(values: Sequence[float] | None, form: str, noise: bool = False) -> str:
    """Return the median, and in brackets the smallest and the largest where they print differently."""
    if not values:
        return "-"
    middle, low, high = map(form.format, values)
    mark = f" {_NOISE}" if noise else ""
    return f"{middle}{mark}" if low == high else f"{middle}{mark} ({low} to {high})"
