"""Start of the drivers of these tests: plan and environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from testbed.processes import ManagedProcess, ProcessGroup
from testbed.spark_cluster import StandaloneCluster
from testbed.stack import PYTHON_PATH, ROOT


def start_driver(
    group: ProcessGroup, cluster: StandaloneCluster, module: str, directory: Path, plan: dict[str, Any], **more: str
) -> ManagedProcess:
    """Start a module of this package as a driver, with ``asked`` as its ``conf.json``; ``more``: its environment."""
    directory.mkdir(exist_ok=True)
    (directory / "conf.json").write_text(json.dumps(plan))
    environment = cluster.driver_environment() | {"PYTHONPATH": PYTHON_PATH, **more}
    command = [sys.executable, "-m", f"tests.soak.{module}", str(directory)]
    return group.start(directory.name, command, env=environment, cwd=ROOT)
