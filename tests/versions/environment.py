"""A new virtual environment with one minor version of Spark and this project as users install it, from its wheel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from testbed.installation import copy_tree

ROOT = Path(__file__).parents[2]
#: What a version needs beside itself. 3.5 was made for numpy 1, which pyarrow wants no more in its newer releases, and
#: imports distutils, which Python has no more from 3.12 on and setuptools brings.
PINS: dict[str, tuple[str, ...]] = {"3.5": ("numpy>=1.26,<2", "pyarrow>=18,<20", "setuptools<81")}
_FREE = ("pyspark", "py4j")  # what the version brings itself, whatever constraints.txt has
_ALSO = ("pytest>=8.3",)  # the tests' own tools import it


def python_of(place: Path) -> Path:
    """Return an environment's interpreter."""
    return place / "bin" / "python"


def make(version: str, place: Path, wheel: Path) -> None:
    """Make the environment anew, with the newest release of this minor version."""
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pins = PINS.get(version, ())
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(still_valid(constraints_of(ROOT), pins)) + "\n")
        constraints.flush()
        command = [str(python_of(place)), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
        command += [
            "-c",
            constraints.name,
            f"pyspark=={version}.*",
            *pins,
            *_ALSO,
            f"rechannel[demo] @ {wheel.as_uri()}",
        ]
        subprocess.run(command, check=True)
    (place / ".complete").touch()


def constraints_of(root: Path) -> list[str]:
    """Return the lines of the project's constraints; none where there is no such file."""
    path = root / "constraints.txt"
    return path.read_text().splitlines() if path.exists() else []


def still_valid(constraints: list[str], pins: tuple[str, ...]) -> list[str]:
    """Return the constraints that hold for this version as well."""
    own = {name_of(pin) for pin in pins}.union(_FREE)
    return [line for line in constraints if line and not line.startswith("#") and name_of(line) not in own]


def name_of(requirement: str) -> str:
    """Return the package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[<>=!~ ;\[@]", requirement, maxsplit=1)[0]).lower()


def build(directory: Path) -> Path:
    """Build the project's wheel, from a copy, so that no build directory is left in the checkout."""
    source = copy_tree(directory / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(directory), str(source)], check=True)
    (wheel,) = directory.glob("rechannel-*.whl")
    return wheel
