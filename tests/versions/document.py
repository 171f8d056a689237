"""The table of Spark's versions in ``docs/compatibility.md``, from the results of a run and the link's own table."""

from __future__ import annotations

from typing import Any

from rechannel.migration.spark import versions

BEGIN, END = "<!-- versions -->", "<!-- end of versions -->"
STORES = ("HDFS-backed", "RocksDB")
_HEADS = (
    "Spark",
    *(f"moves, {store}" for store in STORES),
    "failed task attempts",
    "old copies closed",
    "age of snapshots",
    "restarted query",
    "drained node",
)


def held(actual: dict[str, Any]) -> bool:
    """Whether all that was tried on a version did what it should."""
    if "moved" not in actual or "changed" not in actual:
        return False
    moved, changed = actual["moved"], actual["changed"]
    cells = [cell for cells in moved["cells"].values() for cell in cells.values()]
    exact = all(cell["exact"] and cell["moves"].get("busy") and cell["moves"].get("idle") for cell in cells)
    clean = not changed["wrong"] and not any(changed["link"].values())
    return bool(cells) and exact and clean and moved["failed_tasks"] == changed["failed_tasks"] == 0


def page_part(results: dict[str, Any]) -> str:
    """Return what stands between the marks."""
    ordered = sorted(results, key=versions.minor_version)
    lines = [f"| {' | '.join(_HEADS)} |", f"|{' --- |' * len(_HEADS)}"]
    lines += [f"| {' | '.join(_row(version, results[version]))} |" for version in ordered]
    complete = [results[version] for version in ordered if "moved" in results[version]]
    if complete:
        lines += ["", _with(complete), _summary(complete)]
    lines += ["", *_features()]
    return "\n".join(lines)


def between_marks(page: str, text: str) -> str:
    """Return the page with this text between its marks."""
    before, result, rest = page.partition(BEGIN)
    if not result:
        raise ValueError(f"the page has no {BEGIN}")
    after = rest.partition(END)[2] if END in rest else rest
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _row(version: str, actual: dict[str, Any]) -> list[str]:
    if "error" in actual:
        return [version, f"**{_cell(actual['error'])}**", *[""] * (len(_HEADS) - 2)]
    moved, changed = actual["moved"], actual["changed"]
    closed = moved["closed"]
    exact = "" if not changed["wrong"] else ", **not exact**"
    return [
        actual["spark"],
        *(_moves(moved["cells"].get(store, {})) for store in STORES),
        str(moved["failed_tasks"] + changed["failed_tasks"]),
        f"{closed.get('closed', 0)} logged, {closed.get('presumed', 0)} presumed",
        "known" if changed["snapshot_lags"] else "not known",
        _cell(changed["restarted"]) + exact,
        "released" if changed["drained"] else "**not released**",
    ]


def _moves(cells: dict[str, Any]) -> str:
    wrong = [name for name, cell in cells.items() if not cell["exact"]]
    total = {what: sum(cell["moves"].get(what, 0) for cell in cells.values()) for what in ("busy", "idle")}
    if wrong or not cells:
        return f"**not exact: {_cell(', '.join(wrong) or 'nothing ran')}**"
    return f"{len(cells)} queries exact, {total['busy']} + {total['idle']}"


def _with(complete: list[dict[str, Any]]) -> str:
    """Name what they ran with; packages only of versions that differ are named with their version of Spark."""
    parts = [f"Java {_one(complete, 'java')}", f"Python {_one(complete, 'python')}"]
    for name in sorted({name for result in complete for name in result["packages"]} - {"pyspark"}):
        by_version: dict[str, list[str]] = {}
        for result in complete:
            by_version.setdefault(result["packages"][name], []).append(result["spark"])
        if len(by_version) == 1:
            parts.append(f"{name} {next(iter(by_version))}")
        else:
            parts.append(f"{name} " + ", ".join(f"{own} ({', '.join(where)})" for own, where in by_version.items()))
    return f"With {'; '.join(parts)}."


def _one(complete: list[dict[str, Any]], key: str) -> str:
    return ", ".join(sorted({result[key] for result in complete}))


def _summary(complete: list[dict[str, Any]]) -> str:
    cells = [cell for result in complete for cells in result["moved"]["cells"].values() for cell in cells.values()]
    total = {
        what: sum(cell["moves"].get(what, 0) for cell in cells) for what in ("busy", "idle", "missed", "abandoned")
    }
    return (
        f"In all {total['busy'] + total['idle']:,} moves landed, {total['missed']:,} steers missed and were "
        f"repeated, {total['abandoned']:,} moves were abandoned."
    )


def _features() -> list[str]:
    lines = ["| what Rechannel uses | since Spark | on older ones it |", "| --- | --- | --- |"]
    for feature in versions.FEATURES:
        note = "; said at attach" if feature.loss else ""
        lines.append(f"| {feature.name} | {versions.format_version(feature.since)} | {feature.fallback}{note} |")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
