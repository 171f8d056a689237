"""Reading the pages: their links, their headings, and the commands and files that stand in them.

What a test has to know of a block stands in a comment right before it, which readers do not see:

``<!-- test: PART; PART -->``, of a block of commands (```` ```console ````), with the parts

* ``not run; REASON``: it is left out;
* ``background``: its commands go on in the background;
* ``says REGEX``: what the block has to say, else it is run again;
* ``within N s``: for so long (one try without it);
* ``exit N, N`` or ``exit any``: the exit codes that are right (0 without it);
* ``interrupt after N s``: its commands go on until they are interrupted.

``<!-- file: NAME -->``: the block after it is saved under that name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (*sorted(DOCS.rglob("*.md")), ROOT / "README.md")
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

_BLOCK = re.compile(
    r"(?:<!-- (?P<kind>test|file): (?P<comment>.*?) -->\n\n?)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}[^\n]*\n|\n)+", re.M)


def name(page: Path) -> str:
    """Return the name of a page in the repository."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A block of a page: a file that has a ``name``, or commands. ``text`` without prompts."""

    language: str
    text: str
    name: str = ""
    left_out: str = ""
    background: bool = False
    says: str = ""
    within: float = 0.0
    exits: tuple[int, ...] | None = (0,)  # None: any
    interrupt: float = 0.0

    @property
    def commands(self) -> list[str]:
        """Return the commands of a block of them, one a prompt."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in their order."""
    result = []
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        language, text, comment = match["language"], match["text"], match["comment"] or ""
        if match["kind"] == "file":
            result.append(Block(language, text, name=comment))
        else:
            result.append(_logged(language, text, comment, page))
    return result


def _logged(language: str, text: str, comment: str, page: Path) -> Block:
    arguments: dict[str, object] = {}
    for part in (part.strip() for part in comment.split(";")):
        word, _, rest = part.partition(" ")
        if part == "not run":
            arguments["left_out"] = comment.partition(";")[2].strip() or "?"
            break
        if part == "background":
            arguments["background"] = True
        elif word == "says":
            arguments["says"] = rest
        elif word == "exit":
            arguments["exits"] = None if rest == "any" else tuple(int(code) for code in rest.split(","))
        elif seconds := re.fullmatch(r"(within|interrupt after) (\d+) s", part):
            arguments["within" if seconds[1] == "within" else "interrupt"] = float(seconds[2])
        elif part:
            raise ValueError(f"{page.name}: {part!r} is no word for tests")
    return Block(language, text, **arguments)  # type: ignore[arg-type]


def links(page: Path) -> list[str]:
    """Return where a page links to, other hosts left out."""
    text = re.sub(r"`[^`\n]*`", "", _FENCED.sub("", page.read_text(encoding="utf-8")))
    result = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link for link in result if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> tuple[set[str], set[str]]:
    """Return the anchors of a page's headings as the site makes them, and as a repository's viewer does."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = [
        re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ +(.*?) *#*$", text, re.M)
    ]
    return {_by_mkdocs(title) for title in headings}, {_by_viewer(title) for title in headings}


def _by_mkdocs(title: str) -> str:
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _by_viewer(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def in_nav() -> list[str]:
    """Return the pages that the site's navigation names."""

    def inside(item: object) -> Iterator[str]:
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            for value in item.values():
                yield from inside(value)
        elif isinstance(item, list):
            for value in item:
                yield from inside(value)

    return list(inside(SITE["nav"]))


def mentioned(page: Path) -> list[str]:
    """Return all our commands in a page, in blocks and within sentences, without their comments."""
    text = page.read_text(encoding="utf-8")
    result = [result[1:-1] for result in re.findall(r"`rechannel [^`\n]+`", _FENCED.sub("", text))]
    return result + block_commands(page)


def block_commands(page: Path) -> list[str]:
    """Return our commands in the blocks of a page, fenced or indented, without their comments."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in _FENCED.findall(text) for line in block.splitlines()]
    lines += [line for block in _INDENTED.findall(_FENCED.sub("", text)) for line in block.splitlines()]
    result = []
    for line in lines:
        bare = re.sub(r"^\$ |^(?:[A-Z_]+=\S+ +)+", "", re.sub(r"^\$ ", "", line.strip()))
        bare = re.split(r"\s+#|\s+>|\s+2>", bare)[0].removesuffix("&").strip()
        result += [part.strip() for part in bare.split("; ") if part.strip().startswith("rechannel ")]
    return result
