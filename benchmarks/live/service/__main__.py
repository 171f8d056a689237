"""``python -m benchmarks.live --workload service``: one run on a testbed with known truth, or the table of several."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live.service.cases import Draw, draw
from benchmarks.live.service.plot import draw_run
from benchmarks.live.service.report import report
from benchmarks.live.service.results import read, write
from benchmarks.live.service.run import Plan, measure
from benchmarks.live.service.session import EVENT_LOGS, VARIANTS
from benchmarks.report.results import progress, without_files

WORKLOAD = "service"


def main(arguments: Sequence[str]) -> int:
    """Make a run, or print the table of the named files; 1 where a run failed or its output is not exact."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.report:
        runs = [read(path) for path in options.report]
        print(report(runs))
        if options.plot:
            draw_run(runs[0], options.plot)
        return 0
    if options.json is None:
        parser.error("--json or --report is needed")
    case = draw(options.seed, Draw(**{name: getattr(options, name) for name in Draw.__struct_fields__}))
    lengths = {"before": options.batches, "after": options.batches, "patience": options.patience}
    plan = Plan(options.variant, options.ask, **lengths)
    with tempfile.TemporaryDirectory(prefix="rechannel-service-", ignore_cleanup_errors=True) as root:
        command = without_files(arguments, "--json", "--event-logs")
        result = measure(Path(root), case, plan, command)
        if options.event_logs:
            for name in (name for name in EVENT_LOGS if Path(root, name).exists()):  # a run may end before its decision
                shutil.copytree(Path(root, name), options.event_logs / name, dirs_exist_ok=True)
    write(options.json, result)
    progress(f"{result.seconds:.0f} s, written: {options.json}")
    print(report([result]))
    return 0 if result.exact and not result.error else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live --workload service", description=__doc__)
    add = parser.add_argument
    add("--workload", choices=(WORKLOAD,), default=WORKLOAD, help="this testbed")
    add("--json", type=Path, metavar="FILE", help="file of the run")
    add("--report", type=Path, nargs="+", metavar="FILE", help="print the table of these runs instead")
    add("--event-logs", type=Path, metavar="DIR", help="keep Spark's event logs there: whole, and at the decision")
    add("--plot", type=Path, metavar="FILE", help="with --report: draw the first run")
    add("--variant", choices=VARIANTS, default="adaptive", help="who decides; none: Rechannel only observes")
    add("--ask", action="store_true", help="request a rebalance instead of waiting for a trigger")
    add("--seed", type=int, default=1, metavar="N", help="of all that is not set [default: 1]")
    add("--queries", type=int, choices=range(1, 5), metavar="N", help="1 to 4")
    add("--executors", type=int, metavar="N", help="2 or more")
    add("--cores", type=int, choices=(1, 2), help="of each executor")
    add("--partitions", type=int, metavar="N", help="of each query")
    add("--zipf", type=float, metavar="S", help="exponent of the rows over the partitions")
    add("--triggers", action=argparse.BooleanOptionalAction, help="an interval for each query, or back to back")
    add("--scheduler", choices=("FIFO", "FAIR"), help="FAIR: with a pool for each query")
    add("--noise", type=float, metavar="CORES", help="burned by a process beside the cluster, below 1")
    add("--load", type=float, metavar="SECONDS", help="of service on the busiest task slot in a cycle, at best")
    add("--service-ms", type=int, default=25, metavar="MS", help="that a row takes [default: 25]")
    add("--no-spread", dest="spread", action="store_false", help="start as Spark places partitions: link.spread is off")
    add("--batches", type=int, default=Plan.before, metavar="N", help="measured before, and after [default: 15]")
    add("--patience", type=float, default=Plan.patience, metavar="SECONDS", help="for a decision [default: 330]")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
