"""Contents of the wheel: every module and the example configuration."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORT_ALL = """
import importlib, importlib.resources, pathlib, pkgutil, sys
import rechannel
assert pathlib.Path(rechannel.__file__).is_relative_to(sys.argv[1]), rechannel.__file__
names = [info.name for info in pkgutil.walk_packages(rechannel.__path__, "rechannel.")]
for name in names:
    importlib.import_module(name)
assert (importlib.resources.files("rechannel.conf") / "rechannel.toml").is_file()
from rechannel.daemon.view.status import ControllerView
from rechannel.daemon.web import rendering, routes
from rechannel.daemon.web.view_model import build_document
assert routes(lambda: None)  # reads the static files
assert "production" in rendering.page(build_document(ControllerView(cluster="production"), 1e9), 3.0)
print(len(names))
"""


def test_the_wheel_holds_every_module(tmp_path):
    # Built from a copy, so that no build directory is left in the checkout.
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(source)], check=True, timeout=300)
    (wheel,) = tmp_path.glob("rechannel-*.whl")
    target = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    command = [sys.executable, "-c", IMPORT_ALL, str(target)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    package = ROOT / "src" / "rechannel"
    modules = [path for part in package.iterdir() if part.is_dir() for path in part.rglob("*.py")]
    modules += [path for path in package.glob("*.py") if path.name != "__init__.py"]
    assert int(done.stdout) == len(modules)
