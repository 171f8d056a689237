"""Build wheel and source archive of both distributions, and check them; nothing is uploaded.

``python .ci/release.py [--out DIRECTORY]`` builds everything twice, each time from a new copy of the tree, and fails
unless both builds are the same byte for byte, the metadata are valid, and each archive holds the files of its
``src/rechannel`` and no other. Of a git repository it builds the last commit.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = {"rechannel": ".", "rechannel_agent": "distributions/agent"}
_EARLIEST = 315_532_800  # 1980-01-01, the first time that a wheel can hold
_OF_SOURCES = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py"}
LEFT_OUT = (".git", ".venv", "build", "dist", "out", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")


class ReleaseError(Exception):
    """What was built cannot be released; the text names the file and the cure."""


def main(arguments: list[str] | None = None) -> int:
    """Build, check, and put the files into a directory."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="directory of the files [default: dist]")
    out: Path = parser.parse_args(arguments).out
    try:
        check_tag()
        with tempfile.TemporaryDirectory() as directory:
            first, second = (build(Path(directory) / name) for name in ("first", "second"))
            check_same(first, second)
            for name, project in PROJECTS.items():
                check_contents(first, name, package_files(Path(directory) / "first/tree" / project))
            check_metadata(first)
            out.mkdir(parents=True, exist_ok=True)
            for path in [*out.glob("rechannel*.whl"), *out.glob("rechannel*.tar.gz")]:
                path.unlink()
            for path in sorted(first.iterdir()):
                shutil.copy(path, out)
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                print(f"{digest}  {path.name}  {path.stat().st_size / 1000:.0f} kB")
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def is_repository() -> bool:
    """Whether the tree is the work tree of a git repository."""
    return (ROOT / ".git").exists()


def git(*words: str) -> str:
    """Return what git prints; "" if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)  # noqa: S603, S607  # nosec B607
    return done.stdout.strip() if done.returncode == 0 else ""


def check_tag() -> None:
    """Raise ReleaseError if the tag of the commit and the version in the tree differ."""
    tag = git("describe", "--exact-match", "--tags", "--match", "v[0-9]*") if is_repository() else ""
    match = re.search(r'__version__ = "(.+)"', (ROOT / "wire/version.py").read_text(encoding="utf-8"))
    standing = match[1] if match else ""
    if tag and tag != f"v{standing}":
        raise ReleaseError(f"the tag is {tag}, but wire/version.py has {standing}: set it in the commit that is tagged")
    if is_repository() and git("status", "--porcelain"):
        print("release: changes that are not committed are not in it", file=sys.stderr)


def copy_tree(tree: Path) -> None:
    """Copy what is built: the last commit with its tags, or without git all files but caches."""
    if not is_repository():
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    elif not git("clone", "--quiet", "--no-hardlinks", str(ROOT), str(tree)) and not tree.is_dir():
        raise ReleaseError(f"git cannot clone {ROOT}")


def build(directory: Path) -> Path:
    """Build both distributions in a new directory; returns that of the files."""
    tree, out = directory / "tree", directory / "files"
    directory.mkdir()
    copy_tree(tree)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or _EARLIEST)
    os.umask(0o022)  # the modes are in the archives
    for project in PROJECTS.values():
        # The wheel is built from the source archive, with the tools that constraints.txt pins.
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree / project)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise ReleaseError(f"{project} cannot be built:\n{done.stdout}{done.stderr}")
    for archive in out.glob("*.tar.gz"):
        normalize(archive, epoch)
    return out


def normalize(archive: Path, epoch: int) -> None:
    """Write a source archive again, with one time and owner and in order of names.

    Setuptools takes all of these from the machine.
    """
    data = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=data, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            content = old.extractfile(member) if member.isfile() else None
            member.mtime, member.pax_headers = epoch, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            new.addfile(member, content)
    archive.write_bytes(gzip.compress(data.getvalue(), mtime=epoch))


def check_same(first: Path, second: Path) -> None:
    """Raise ReleaseError unless two directories hold the same files."""
    if {path.name for path in first.iterdir()} != {path.name for path in second.iterdir()}:
        raise ReleaseError("two builds have files of other names")
    for path in first.iterdir():
        if path.read_bytes() != (second / path.name).read_bytes():
            raise ReleaseError(f"{path.name}: two builds differ; `diffoscope` shows where")


def package_files(project: Path) -> set[str]:
    """Return the files of a distribution's package, such as ``rechannel/conf/loader.py``."""
    source = project / "src"
    paths = (Path(directory, name) for directory, _, names in os.walk(source, followlinks=True) for name in names)
    names = (path.relative_to(source) for path in paths)
    return {str(name) for name in names if name.parts[0] == "rechannel" and "__pycache__" not in name.parts}


def check_contents(directory: Path, name: str, expected: set[str]) -> None:
    """Raise ReleaseError unless wheel and source archive of a distribution hold these files."""
    (wheel,) = directory.glob(f"{name}-*.whl")
    (source,) = directory.glob(f"{name}-*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = {item for item in archive.namelist() if ".dist-info/" not in item.partition("/")[0] + "/"}
    _compare(wheel, packed, expected)
    with tarfile.open(source) as sources:
        members = [member.name.partition("/")[2] for member in sources.getmembers() if member.isfile()]
    packed = {item for item in members if ".egg-info/" not in item} - _OF_SOURCES
    _compare(source, packed, {f"src/{item}" for item in expected})


def _compare(archive: Path, packed: Iterable[str], expected: Iterable[str]) -> None:
    packed, expected = set(packed), set(expected)
    if packed != expected:
        raise ReleaseError(
            f"{archive.name}: lacks {sorted(expected - packed)}, holds beside {sorted(packed - expected)}"
        )


def check_metadata(directory: Path) -> None:
    """Raise ReleaseError unless the metadata of all wheels are valid and of one version."""
    versions = set()
    for wheel in directory.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (item for item in archive.namelist() if item.endswith(".dist-info/METADATA"))
            try:
                metadata = Metadata.from_email(archive.read(name))
            except ExceptionGroup as error:
                raise ReleaseError(f"{wheel.name}: {'; '.join(map(str, error.exceptions))}") from error
        versions.add(metadata.version)
    if len(versions) != 1:
        raise ReleaseError(f"the distributions have different versions: {', '.join(map(str, versions))}")


if __name__ == "__main__":
    sys.exit(main())
