"""Version of a build, which pyproject.toml cannot express: that of the tag, else the one that stands.

`distributions/agent/setup.py` is a link to this file.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools_scm import ScmVersion, get_version
from setuptools_scm.version import get_local_node_and_date, guess_next_dev_version

ROOT = Path(__file__).resolve().parent
MODULE = Path("rechannel", "wire", "version.py")
STANDING = re.search(r'__version__ = "(.+)"', Path("src", MODULE).read_text(encoding="utf-8"))[1]
NO_TAG = "0.0"  # what setuptools-scm takes for the last tag where there is none, as in a shallow clone


def base(tree: ScmVersion) -> str:
    """Return the version without its local part."""
    return STANDING if str(tree.tag) == NO_TAG else guess_next_dev_version(tree)


def local(tree: ScmVersion) -> str:
    """Return the local part: the commit, and the day if there are changes that are not committed."""
    return "" if str(tree.tag) == NO_TAG else get_local_node_and_date(tree)


class BuildPy(build_py):
    """Writes the version into the module that is built; the one in the tree stays."""

    def run(self) -> None:
        """Build the modules."""
        super().run()
        built = Path(self.build_lib, MODULE)
        if not self.editable_mode and built.is_file():
            text = built.read_text(encoding="utf-8").replace(f'"{STANDING}"', f'"{self.distribution.get_version()}"')
            built.unlink()  # never through a link, into the tree
            built.write_text(text, encoding="utf-8")


def version() -> str:
    """Return the version of this tree, of its tag or of its source archive."""
    try:
        return get_version(
            root=str(ROOT),
            fallback_root=".",  # of a source archive: PKG-INFO is there
            version_scheme=base,
            local_scheme=local,
            scm={"git": {"describe_command": "git describe --dirty --tags --long --match v[0-9]*"}},
        )
    except LookupError:  # neither a repository nor a source archive
        return STANDING


setup(version=version(), cmdclass={"build_py": BuildPy})
