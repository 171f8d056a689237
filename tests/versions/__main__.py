"""Tries Rechannel on each minor version of Spark, in a new environment each, and writes the table in the documentation.

``python -m tests.versions --json FILE --document FILE``. Results of versions that were not asked for stay in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rechannel.migration.spark import versions
from tests.versions import environment
from tests.versions.document import between_marks, held, page_part

ROOT = Path(__file__).parents[2]
ALL = [versions.format_version(version) for version in versions.TESTED]
#: Aggregation, deduplication, a join, two stages, and state of Python: of each kind of stateful operator one.
QUERIES = (
    "aggregation",
    "dropDuplicatesWithinWatermark",
    "join, left outer, format 2",
    "two stages",
    "applyInPandasWithState",
)
_LONGEST = 3600  # seconds for one version


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("--versions", default=" ".join(ALL), metavar="'4.0 4.2'", help="[default: all that are known]")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="what was found; added to")
    parser.add_argument("--document", type=Path, metavar="FILE", help="write the table between its marks")
    parser.add_argument("--environments", type=Path, default=ROOT / "out" / "versions", metavar="DIRECTORY")
    parser.add_argument("--reuse", action="store_true", help="take environments that are complete as they are")
    parser.add_argument("--render", action="store_true", help="run nothing, only write the document")
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="keep the logs there")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for; 1 if anything did not hold."""
    options = arguments()
    selected = options.versions.replace(",", " ").split()
    if unknown := [version for version in selected if version not in ALL]:
        raise SystemExit(f"not among {', '.join(ALL)}: {', '.join(unknown)}")
    results: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    broken = 0
    if not options.render:
        with tempfile.TemporaryDirectory(prefix="rechannel-wheel-") as directory:
            wheel = environment.build(Path(directory))
            for version in selected:
                results[version] = tried(version, wheel, options)
                broken += not held(results[version])
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    if options.document is not None:
        page = options.document.read_text()
        options.document.write_text(between_marks(page, page_part(results)))
        say(f"{options.document} is written")
    return 1 if broken else 0


def tried(version: str, wheel: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Make one version's environment and run both acts in it."""
    place = options.environments.resolve() / version
    if not (options.reuse and (place / ".complete").exists()):
        say(f"Spark {version}: a new environment in {place}")
        environment.make(version, place, wheel)
    else:  # the project itself is always the one of now
        pip = [str(environment.python_of(place)), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "--no-deps", "--force-reinstall", str(wheel)], check=True)
    say(f"Spark {version}: moving, restarting, draining")
    began = time.monotonic()
    own = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_", "RECHANNEL_"))}
    own |= {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        "PATH": os.pathsep.join((str(place / "bin"), own.get("PATH", os.defpath))),
        "MATRIX_QUERIES": ";".join(QUERIES),
    }
    with tempfile.TemporaryDirectory(prefix=f"rechannel-{version}-") as directory:
        where = options.logs.resolve() / version if options.logs else Path(directory)
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        file = where / "result.json"
        command = [str(environment.python_of(place)), "-m", "versions.inside", str(where), str(file)]
        done = subprocess.run(command, env=own, stderr=subprocess.PIPE, text=True, timeout=_LONGEST, check=False)
        result: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if done.returncode:
        sys.stderr.write(done.stderr)
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        result["error"] = lines[-1] if lines else f"ended with code {done.returncode}"
    say(f"Spark {version}: {'held' if held(result) else 'did not hold'}, {time.monotonic() - began:.0f} s")
    return result


def say(sentence: str) -> None:
    """Say how far it is."""
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
