"""The page `docs/machines.md`, from what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.machines.steps import Outcome

_HEAD = """\
# Machines that systemd booted

What was done on six booted machines, with what came of it. Made by `make machines`
(`python -m tests.machines --json FILE --document docs/machines.md`), which needs root and a Debian host with
`systemd-container` and `debootstrap`; do not edit it by hand.

Each machine is a container of systemd-nspawn whose first process is Debian's systemd, with its own processes, users,
mounts, network and journal. Two machines run a controller and Redis (master and replica, over TLS, with the users of
`rechannel acl`), three a Spark worker and an agent, one the Spark master and the driver, an unchanged script under
`rechannel submit`. Three sentinels watch Redis. All machines share the kernel and the cores of one host, so seconds
here are not those of six hosts, and services of the same name share a control group. The queries run during all steps
below *Install*, and after each fault every row that they wrote is compared with what the same rows give at once.
Of all this, `make test` as root boots one machine on the host's own root, and installs and breaks the agent in it.

"""


def page(document: dict[str, Any]) -> str:
    """Return the page of a document that the suite has saved."""
    made = f"Commit {document['revision']}, {document['date']}.\n\n"
    return _HEAD + made + tables([Outcome(**row) for row in document["outcomes"]])


def tables(outcomes: Sequence[Outcome]) -> str:
    """Return a table for each part."""
    parts: list[str] = []
    for part in dict.fromkeys(outcome.part for outcome in outcomes):
        rows = [outcome for outcome in outcomes if outcome.part == part]
        faults = any(row.recovered is not None for row in rows)
        more = " recovered in, s | rows lost | doubled |" if faults else " seconds |"
        parts.append(f"## {part}\n\n| what | outcome |{more}\n| --- | --- |{' ---: |' * more.count('|')}\n")
        for row in rows:
            outcome = f"**failed**: {row.failure.splitlines()[0]}" if row.failure else row.outcome
            figures = f" {row.seconds:.0f} |"
            if faults:
                recovered = "" if row.recovered is None else f"{row.recovered:.0f}"
                lost, doubled = ("" if rows is None else rows for rows in (row.lost, row.doubled))
                figures = f" {recovered} | {lost} | {doubled} |"
            parts.append(f"| {row.what} | {outcome} |{figures}\n")
        parts.append("\n")
        if part == "Hardening":
            parts.append(
                "Each attempt runs as a transient service three times: without hardening, where it succeeds; with\n"
                "that line alone; and with all lines of the unit and its user. *Stopped*: in both of these.\n\n"
                "| unit | line | attempt | outcome |\n| --- | --- | --- | --- |\n"
            )
            parts += [f"| {' | '.join(cells)} |\n" for row in rows for cells in row.rows]
            parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"
