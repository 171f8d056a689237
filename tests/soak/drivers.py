"""How the drivers of these tests are started: their configuration, their environment."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from testbed.processes import ManagedProcess, ProcessGroup
from testbed.spark_cluster import StandaloneCluster

ROOT = Path(__file__).parents[2]


def write_config(directory: Path, redis_url: str, more: str = "") -> Path:
    """Write ``rechannel.toml``; ``more``: further settings of ``link``, and sections."""
    path = directory / "rechannel.toml"
    sections = f'[cluster]\nname = "soak"\n[redis]\nurl = "{redis_url}"\n[link]\ndirectory = "{directory / "link"}"\n'
    path.write_text(sections + more)
    return path


def start_driver(
    group: ProcessGroup, cluster: StandaloneCluster, module: str, directory: Path, asked: dict[str, Any], **more: str
) -> ManagedProcess:
    """Start a module of this package as a driver, with ``asked`` as its ``conf.json``; ``more``: its environment."""
    directory.mkdir(exist_ok=True)
    (directory / "conf.json").write_text(json.dumps(asked))
    environment = cluster.driver_environment() | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **more}
    command = [sys.executable, "-m", f"tests.soak.{module}", str(directory)]
    return group.start(directory.name, command, env=environment, cwd=ROOT)
