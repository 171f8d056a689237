"""Runs the drills, keeps their results, writes the documentation: ``python -m tests.drills --json FILE``.

What a file holds already is not run again unless it did not hold; so a run that was broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import tempfile
from pathlib import Path

from tests.drills import chaos, load, reliability, results, sigterm
from tests.drills.scenarios import SCENARIOS
from tests.drills.session import NoWorldError, Session, to_stderr
from tests.drills.world import PROVIDERS

_PARTS = ("scenarios", "sigterm", "load", "chaos")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__)
    parser.add_argument("--scenario", action="append", default=[], metavar="WORDS", help="those whose name has these")
    parser.add_argument("--fast", action="store_true", help="only those that CI runs")
    parser.add_argument("--provider", choices=sorted(PROVIDERS), action="append", help="[default: both]")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run each so many times [default: 1]")
    parser.add_argument("--only", choices=list(_PARTS), action="append", help="[default: all four]")
    parser.add_argument("--tries", type=int, default=6, metavar="N", help="executors ended by sigterm, each way")
    parser.add_argument("--minutes", type=float, default=10.0, help="of chaos [default: 10]")
    parser.add_argument("--seed", type=int, default=1, help="of chaos [default: 1]")
    parser.add_argument("--phase", type=float, default=load.PHASE, help="of the load test, in seconds [default: 40]")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="what was found; added to")
    parser.add_argument("--document", type=Path, metavar="FILE", help="write the tables between its marks")
    parser.add_argument("--render", action="store_true", help="run nothing, only write the document")
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="where logs of what did not hold are kept")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    return parser.parse_args()


def main() -> int:
    """Run what was asked for; 1 if anything did not hold."""
    options = arguments()
    if options.list:
        sys.stdout.writelines(f"{scenario.name}{' (CI)' if scenario.fast else ''}\n" for scenario in SCENARIOS)
        return 0
    providers = options.provider or sorted(PROVIDERS)
    only = options.only or _PARTS
    document = results.load(options.json)
    document["machine"] = reliability.machine()
    broken = 0
    if not options.render and "scenarios" in only:
        document, broken = _scenarios(options, document, providers)
    if not options.render and "sigterm" in only:
        document, failed = _sigterm(options, document)
        broken += failed
    if not options.render and "load" in only:
        for provider in providers:
            outcome = load.run(provider, options.phase)
            document["load"] = document.get("load", {}) | {provider: outcome}
            results.save(options.json, document)
    if not options.render and "chaos" in only:
        for provider in providers:
            run = chaos.run(options.seed, options.minutes, provider, directory=options.logs)
            document["chaos"] = chaos.merged(document.get("chaos", []), run)
            broken += not run["held"]
            results.save(options.json, document)
    if options.document is not None:
        reliability.write(options.document, document)
        to_stderr(f"{options.document} is written")
    return 1 if broken else 0


def _scenarios(
    options: argparse.Namespace, document: results.Document, providers: list[str]
) -> tuple[results.Document, int]:
    broken = 0
    runs = [
        scenario
        for scenario in SCENARIOS
        if (scenario.fast or not options.fast)
        and (not options.scenario or any(re.search(text, scenario.name) for text in options.scenario))
    ]
    if not runs:
        names = "\n".join(scenario.name for scenario in SCENARIOS)
        raise SystemExit(f"no scenario is named so; known are\n{names}")
    session = Session(options.logs)
    try:
        for repetition in range(1, options.repeat + 1):
            for provider in providers:
                for scenario in runs:
                    if results.is_done(document, scenario.name, provider, repetition):
                        continue
                    try:
                        result = session.run(scenario, provider, repetition)
                    except NoWorldError as error:
                        to_stderr(str(error))
                        broken += 1
                        continue
                    broken += not (result.held or result.skipped)
                    document = results.merge(document, result)
                    results.save(options.json, document)
    finally:
        session.close()
    return document, broken


def _sigterm(options: argparse.Namespace, document: results.Document) -> tuple[results.Document, int]:
    broken = 0
    for cured, attached in itertools.product((False, True), repeat=2):
        with tempfile.TemporaryDirectory(prefix="rechannel-sigterm-") as directory:
            outcome = sigterm.run(options.tries, cured=cured, attached=attached, directory=Path(directory) / "world")
        for problem in outcome["problems"]:
            to_stderr(f"did not hold: {problem}")
        broken += bool(outcome["problems"])
        document = document | {"sigterm": sigterm.merged(document.get("sigterm", []), outcome)}
        results.save(options.json, document)
    return document, broken


if __name__ == "__main__":
    raise SystemExit(main())
