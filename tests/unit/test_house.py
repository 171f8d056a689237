"""The house rules: rooms, names and first lines that a newcomer can rely on; test_layout holds the sizes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest

from rechannel.wire import codes

ROOT = Path(__file__).parents[2]
PRODUCT = ("conf", "daemon", "migration", "monitors", "policies", "wire")
CODE = (*PRODUCT, "benchmarks", "testbed", "examples", "tests")
MOST_MODULES = 15  # of one room
LONGEST_FIRST_LINE = 88  # characters, of a docstring
# Participles that name nothing: a reader has to find out what was found, kept or said.
BANNED = frozenset({"asked", "found", "given", "heard", "kept", "known", "said", "told", "wanted", "words"})
QUESTION = re.compile(r"(How|What|When|Where|Whether|Which|Who|Why)\b")


@cache
def modules(part: str) -> tuple[tuple[Path, ast.Module], ...]:
    """Return the modules of a part with their trees."""
    return tuple((path, ast.parse(path.read_text())) for path in sorted((ROOT / part).rglob("*.py")))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("part", PRODUCT)
def test_no_room_has_more_modules_than_a_reader_can_survey(part: str) -> None:
    rooms = Counter(path.parent for path, _ in modules(part) if path.name not in ("__init__.py", "__main__.py"))
    assert {shown(room): count for room, count in rooms.items() if count > MOST_MODULES} == {}


def bound(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each name that a tree gives to a variable, parameter, attribute or function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


@pytest.mark.parametrize("part", CODE)
def test_a_name_says_what_it_is(part: str) -> None:
    riddles = [
        f"{shown(path)}:{line} {name}"
        for path, tree in modules(part)
        for line, name in bound(tree)
        if name.lstrip("_") in BANNED
    ]
    assert riddles == []


@pytest.mark.parametrize("part", CODE)
def test_a_module_says_what_it_holds(part: str) -> None:
    questions = [
        shown(path) for path, tree in modules(part) if QUESTION.match((ast.get_docstring(tree) or "").lstrip())
    ]
    assert questions == []


@pytest.mark.parametrize("part", PRODUCT)
def test_first_lines_are_short_and_no_questions(part: str) -> None:
    wrong = []
    for path, tree in modules(part):
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                line = (ast.get_docstring(node) or "").split("\n")[0]
                if (QUESTION.match(line) and not line.startswith("Whether ")) or len(line) > LONGEST_FIRST_LINE:
                    wrong.append(f"{shown(path)}:{getattr(node, 'lineno', 1)} {line}")
    assert wrong == []


@pytest.mark.parametrize("part", CODE)
def test_sections_of_docstrings_leave_types_to_the_signature(part: str) -> None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    sections = (
        (path, section)
        for path, tree in modules(part)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for section in re.findall(r"^-{4,}\n((?:.+\n?)*)", ast.get_docstring(node) or "", re.MULTILINE)
    )
    assert [f"{shown(path)} {line}" for path, text in sections for line in re.findall(r"^\S.* : .*", text, re.M)] == []


def own_attributes(methods: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each attribute of ``self`` that the methods set."""
    for node in (node for method in methods for node in ast.walk(method)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def late_attributes(tree: ast.Module, part: str) -> Iterator[str]:
    """Yield each attribute that an object of a class gets after its construction."""
    classes = {node.name: node for _, tree in modules(part) for node in tree.body if isinstance(node, ast.ClassDef)}
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        family = [kind, *(classes[base.id] for base in kind.bases if isinstance(base, ast.Name) and base.id in classes)]
        body = [item for member in family for item in member.body]
        declared = {name for item in body if isinstance(item, ast.Assign | ast.AnnAssign) for _, name in bound(item)}
        start = {"__init__", "__post_init__", "__enter__"}
        methods = [item for item in body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
        early = declared.union(own_attributes(method for method in methods if method.name in start))
        yield from (f"{kind.name}.{name}" for name in own_attributes(methods) if name not in early)


@pytest.mark.parametrize("part", PRODUCT)
def test_an_object_has_all_its_attributes_from_the_start(part: str) -> None:
    assert [f"{shown(path)} {name}" for path, tree in modules(part) for name in late_attributes(tree, part)] == []


def test_an_attribute_that_a_method_adds_is_seen() -> None:
    tree = ast.parse("class A:\n def __init__(self):\n  self.a = 1\n def b(self):\n  self.a, self.c = 2, 3")
    assert list(late_attributes(tree, "wire")) == ["A.c"]


def all_codes() -> set[str]:
    """Return every code; "ok" is Redis' word too."""
    kinds = [kind for kind in vars(codes).values() if isinstance(kind, type) and issubclass(kind, StrEnum)]
    return {str(member) for kind in kinds for member in kind} - {"ok"}


def compared(tree: ast.AST) -> Iterator[tuple[int, object]]:
    """Yield each literal that a tree compares with ``==``, ``!=``, ``in`` or ``case``."""
    for node in ast.walk(tree):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq | ast.In | ast.NotIn):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):  # also within a pattern of alternatives, a sequence or a class
            sides = [node.value]
        for side in sides:
            for item in side.elts if isinstance(side, ast.Tuple | ast.Set | ast.List) else [side]:
                if isinstance(item, ast.Constant):
                    yield item.lineno, item.value


@pytest.mark.parametrize("part", PRODUCT)
def test_no_code_is_compared_as_a_string(part: str) -> None:
    literals = all_codes()
    wrong = [
        f"{shown(path)}:{line} {value!r}"
        for path, tree in modules(part)
        for line, value in compared(tree)
        if value in literals
    ]
    wrong += [
        f"{shown(path)} {match[1]!r}"
        for path in sorted((ROOT / part).rglob("*.html"))
        for match in re.finditer(r"""[!=]= ?["']([\w-]+)["']""", path.read_text())
        if match[1] in literals
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line", ['x == "applied"', 'x in ("a", "applied")', 'match x:\n    case "a" | ("applied", _): ...']
)
def test_the_search_for_compared_codes_sees_every_form(line: str) -> None:
    assert "applied" in [value for _, value in compared(ast.parse(line))]
