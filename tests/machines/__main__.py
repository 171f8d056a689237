"""Boots a cluster of Debian machines, installs it by its page, and breaks it: ``python -m tests.machines``.

Exit code 1: a step did not come out as the page promises. Exit code 2: no machine can be booted here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.report.results import revision
from tests.machines import faults, hardening, installing, page, services
from tests.machines.machine import why_not
from tests.machines.site import Site
from tests.machines.steps import Step, take_all

_PARTS: dict[str, tuple[Step, ...]] = {
    "services": services.STEPS,
    "hardening": hardening.STEPS,
    "faults": faults.STEPS,
}


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    parser.add_argument(
        "--directory", type=Path, default=Path("out/machines"), help="of the layers [default: %(default)s]"
    )
    parser.add_argument("--only", choices=sorted(_PARTS), action="append", help="parts after installing [default: all]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what came of each step")
    parser.add_argument("--document", type=Path, metavar="FILE", help="write this page; only for a run of all parts")
    options = parser.parse_args()
    if reason := why_not():
        sys.stderr.write(f"no machine was booted: {reason}\n")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that machines are switched off
    with Site(options.directory.resolve()) as site:
        outcomes = take_all(site, installing.STEPS)
        if not any(outcome.failure for outcome in outcomes):  # else there is nothing to try
            parts = [step for part in options.only or _PARTS for step in _PARTS[part]]
            outcomes += take_all(site, [*parts, *installing.LAST])
    document = {
        "revision": revision(),
        "date": datetime.now(UTC).date().isoformat(),
        "outcomes": [dataclasses.asdict(outcome) for outcome in outcomes],
    }
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    installed = not any(outcome.failure for outcome in outcomes if outcome.part == installing.PART)
    if options.document is not None and not options.only and installed:
        options.document.write_text(page.page(document))
    return int(any(outcome.failure for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
