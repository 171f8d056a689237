"""Build the Debian packages of both distributions; nothing is uploaded.

``python .ci/deb.py [--out DIRECTORY]`` builds the wheels as ``release.py`` does (of a git repository: of the last
commit), gets those that they require, but PySpark, in the versions of ``constraints.txt``, and has debhelper make the
packages of ``deploy/debian``. For the Python in ``/usr/bin``, whose packages the built ones depend on.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.utils import formatdate
from pathlib import Path

import release
from packaging.metadata import Metadata

PYTHON = "/usr/bin/python3"
LEFT_OUT = {"pyspark"}  # 400 MB, which only drivers need: their cluster brings it


def main(arguments: list[str] | None = None) -> int:
    """Build the packages, and put them into a directory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=release.ROOT / "dist/deb", help="directory [default: dist/deb]")
    out: Path = parser.parse_args(arguments).out
    try:
        with tempfile.TemporaryDirectory() as directory:
            wheels = release.build(Path(directory, "wheels"))
            tree = Path(directory, "tree")
            release.copy_tree(tree)
            (tree / "deploy/debian").rename(tree / "debian")
            for name in release.PROJECTS:
                (wheel,) = wheels.glob(f"{name}-*.whl")
                collect_wheels(wheel, tree / "debian/wheels" / name.replace("_", "-"), tree / "constraints.txt")
            write_changelog(tree / "debian/changelog", wheel.name.split("-")[1])
            run("dpkg-buildpackage", "--build=binary", "--no-sign", cwd=tree)
            out.mkdir(parents=True, exist_ok=True)
            for old in out.glob("rechannel*.deb"):
                old.unlink()
            for package in sorted(Path(directory).glob("rechannel*_*.deb")):
                shutil.copy(package, out)
                print(f"{package.name}  {package.stat().st_size / 1e6:.1f} MB")
    except release.ReleaseError as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    return 0


def collect_wheels(wheel: Path, directory: Path, constraints: Path) -> None:
    """Put a wheel and those of what it requires into a directory."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (item for item in archive.namelist() if item.endswith(".dist-info/METADATA"))
        requirements = Metadata.from_email(archive.read(name)).requires_dist or []
    wanted = [str(item) for item in requirements if not item.marker and item.name not in LEFT_OUT]
    pip = [sys.executable, "-m", "pip", "--python", PYTHON, "--disable-pip-version-check", "wheel", "--quiet"]
    run(*pip, "--wheel-dir", str(directory), "--constraint", str(constraints), *wanted)
    shutil.copy(wheel, directory)


def write_changelog(path: Path, version: str) -> None:
    """Write the changelog that dpkg takes the version and the time of all files from."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or release.git("log", "-1", "--format=%ct") or 0)
    path.write_text(
        f"rechannel ({debian_version(version)}) unstable; urgency=medium\n\n"
        "  * /opt/rechannel/share/doc/rechannel/CHANGELOG.md has the changes.\n\n"
        f" -- Rechannel developers <rechannel@example.org>  {formatdate(epoch)}\n",
        encoding="utf-8",
    )


def debian_version(version: str) -> str:
    """Return a version of Python's as one of Debian's, in the same order: ``0.2.1~dev3+g1a2b3c4``.

    Alphas and betas, which would not be in order, are not released.
    """
    public, plus, local = version.partition("+")
    return re.sub(r"\.?(dev|rc)(\d)", r"~\1\2", public) + plus + local


def run(*command: str, cwd: Path | None = None) -> None:
    """Run a command; raise ReleaseError with what it wrote if it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError as error:
        raise release.ReleaseError(
            f"{command[0]} is not installed: apt install build-essential debhelper python3-venv"
        ) from error
    if done.returncode:
        raise release.ReleaseError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
