"""`rechannel submit` with a script that knows nothing of it, on a real cluster and a real Redis."""

from __future__ import annotations

import contextlib
import json
import sys
import venv
from collections import Counter
from pathlib import Path

import pytest

from rechannel.conf.loader import load
from rechannel.wire import keys
from rechannel.wire.messages import LinkReport
from rechannel.wire.redis.store import Store
from testbed.stack import ROOT, Stack, write_config

pytestmark = [pytest.mark.spark, pytest.mark.redis]
PATIENCE = 300.0


def test_an_unmodified_script_is_attached_reports_and_counts_exactly(stack: Stack, tmp_path: Path):
    text = [f"a b c{number % 5} d{number % 3}" for number in range(30)]
    (tmp_path / "in").mkdir()
    for number, line in enumerate(text):
        (tmp_path / "in" / f"{number}.txt").write_text(line + "\n")
    config = write_config(tmp_path, stack.redis.url, {"cluster": {"name": "submit"}})
    venv.create(tmp_path / "bare", symlinks=True)  # the driver's Python has nothing that the link needs
    python = {"PYSPARK_DRIVER_PYTHON": str(tmp_path / "bare" / "bin" / "python")}
    environment = {**stack.cluster.driver_environment(), **python, "PYTHONPATH": str(ROOT / "src")}
    environment.pop("RECHANNEL_CONFIG", None)
    command = [sys.executable, "-m", "rechannel", "submit", "--config", str(config)]
    for key, value in {**stack.cluster.conf(executor_cores=2), "spark.sql.shuffle.partitions": "4"}.items():
        command += ["--conf", f"{key}={value}"]
    script = Path(__file__).with_name("words.py")
    command += [str(script), *(str(tmp_path / name) for name in ("in", "out.json", "stop"))]
    process = stack.group.start("submit", command, env=environment)
    settings = load(config, {})

    def report() -> LinkReport | None:
        with contextlib.closing(Store(settings.redis, settings.cluster.name)) as store:
            names = store.applications(0.0)
            envelope = store.get(keys.REPORT, names[0]) if names else None
        body = envelope.body if envelope is not None else None
        return body if isinstance(body, LinkReport) and any(query.stages for query in body.queries) else None

    stack.wait("the link reports", lambda: report() is not None)
    reported = report()
    assert reported is not None
    stack.group.processes.pop("submit")  # it may end now
    (tmp_path / "stop").touch()
    assert process.popen.wait(PATIENCE) == 3, process.log_tail(40)
    assert reported.name == "words.py"
    assert [query.name for query in reported.queries] == ["words"]
    assert json.loads((tmp_path / "out.json").read_text()) == Counter(" ".join(text).split())
    # spark-submit itself puts what Python writes to standard error there, the link's lines too.
    assert any(line.startswith("counted ") for line in process.log.read_text().splitlines())
    assert list((tmp_path / "link").iterdir()) == [], "the link ended, and left nothing behind"
