"""Checks the pinned requirements against the database of known vulnerabilities, and never passes without having looked.

pip-audit calls a package that the database does not know "skipped", and ends well: so it does where an index answers
in PyPI's place that has no such database. Therefore a version that is known to be vulnerable is asked for first, and
only what finds it is believed. Where nothing does, this says so loudly; with AUDIT_REQUIRED=1 it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PINNED = Path(__file__).parent.parent / "constraints.txt"
CANARY = "pyyaml==5.3\n"  # CVE-2020-14343: code from a document
DATABASES = ("pypi", "osv")
PATIENCE = 120  # seconds


def main() -> int:
    """Audit with the first database that can be believed; the exit code is 1 where something vulnerable is pinned."""
    reasons = []
    for database in DATABASES:
        with tempfile.TemporaryDirectory() as directory:
            canary = Path(directory) / "canary.txt"
            canary.write_text(CANARY)
            found, why = audit(canary, database)
        if any(package.get("vulns") for package in found):
            return report(database, *audit(PINNED, database))
        reasons.append(f"{database}: {why or 'does not know of ' + CANARY.strip()}")
    return skipped("; ".join(reasons))


def audit(requirements: Path, database: str) -> tuple[list[dict[str, Any]], str]:
    """Return what pip-audit found of each package, or nothing and why."""
    command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    command += ["--format", "json", "--vulnerability-service", database, "--requirement", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603 - our own interpreter and module
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return [], f"no answer within {PATIENCE} s"
    except (ValueError, KeyError):
        return [], (done.stderr.strip().splitlines() or ["no answer"])[-1][:200]
    return found, ""


def report(database: str, found: list[dict[str, Any]], why: str) -> int:
    """Say what was found."""
    if not found:
        return skipped(f"{database}: {why}")
    vulnerable = [(package, each) for package in found for each in package.get("vulns", [])]
    for package, each in vulnerable:
        print(f"audit: {package['name']} {package['version']}: {each['id']}, mended in {each['fix_versions'] or '?'}")
    unknown = sorted(package["name"] for package in found if "skip_reason" in package)
    if unknown:
        print(f"audit: NOT AUDITED, for {database} does not know them: {', '.join(unknown)}", file=sys.stderr)
    print(
        f"audit: {len(found) - len(unknown)} pinned packages audited by {database}, {len(vulnerable)} vulnerabilities"
    )
    return 1 if vulnerable or (unknown and required()) else 0


def skipped(why: str) -> int:
    """Say loudly that nothing was audited."""
    print("=" * 100, file=sys.stderr)
    print(
        "audit: SKIPPED. NOT ONE requirement was checked for vulnerabilities: no database can be reached.",
        file=sys.stderr,
    )
    print(f"audit: {why}", file=sys.stderr)
    print(
        "audit: run `make audit` where pypi.org or api.osv.dev can be reached; AUDIT_REQUIRED=1 fails here.",
        file=sys.stderr,
    )
    print("=" * 100, file=sys.stderr)
    return 1 if required() else 0


def required() -> bool:
    """Whether an audit that could not be made is a failure."""
    return os.environ.get("AUDIT_REQUIRED", "") not in ("", "0")


if __name__ == "__main__":
    sys.exit(main())
