"""The house rules: rooms, names, first lines, state and types that a newcomer can rely on; test_layout: the sizes."""

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


# -- state, owners and types --

# Mappings and sets that the controller's parts hold, with what they are keyed by. What belongs to one application is an
# attribute of `Application`: there is one registry of them, and forgetting an application is deleting it there.
KEYED_BY = {
    "AutomaticDecisionGuard._logged": "trigger and law",
    "ClusterLimits._moves": "decision",
    "ClusterState._applications": "application",
    "DecisionDeduplicator._published": "trigger",
    "ImbalanceTrigger._newest": "query",
    "ImbalanceTrigger._queries": "query",
    "OutcomeHistory._outcomes": "decision",
    "OverloadTrigger._batches": "query",
    "OverloadTrigger._levels": "executor",
    "RequestHandler._after": "stream",
    "RequestHandler._audited": "request",
    "RequestHandler._claiming": "request",
    "RequestHandler._replies": "request",
    "RunningMigration.states": "move",
    "ScheduledPlanStore._next_try": "scheduled plan",
    "ScheduledPlanStore._obstacles": "scheduled plan",
    "ScheduledPlanStore.plans": "scheduled plan",
    "ScheduledPlanStore.settled": "scheduled plan",
    "StandingOrderStore.drains": "node",
}
MAPPING = re.compile(r"\b(dict|defaultdict|Counter|OrderedDict|BoundedDict|Mapping|MutableMapping|set)\b")


def is_mutable(kind: ast.ClassDef) -> bool:
    return not any("frozen=True" in ast.unparse(decorator) for decorator in kind.decorator_list)


def holds_mapping(node: ast.Assign | ast.AnnAssign) -> bool:
    """Return whether an assignment makes a mapping or a set, by its annotation or its value."""
    value = node.value.func if isinstance(node.value, ast.Call) else node.value
    if isinstance(node, ast.AnnAssign):
        return bool(MAPPING.search(ast.unparse(node.annotation)))
    if isinstance(value, ast.Dict | ast.DictComp | ast.Set | ast.SetComp):
        return True
    return isinstance(node.value, ast.Call) and value is not None and bool(MAPPING.match(ast.unparse(value)))


def mappings(tree: ast.AST) -> Iterator[str]:
    """Yield each attribute of a mutable class that is a mapping or a set."""
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and is_mutable(node)):
        for node in ast.walk(kind):
            if isinstance(node, ast.Assign | ast.AnnAssign) and holds_mapping(node):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [ast.unparse(target) for target in targets]
                fields = node in kind.body
                yield from (f"{kind.name}.{name.removeprefix('self.')}" for name in names if fields or "self." in name)


def test_no_part_of_the_controller_keeps_books_on_applications() -> None:
    held = {name for path, tree in modules("daemon") if path.parent.name == "control" for name in mappings(tree)}
    assert held == KEYED_BY.keys(), "each is listed with its key"
    assert [name for name, key in KEYED_BY.items() if key == "application"] == ["ClusterState._applications"]


@pytest.mark.parametrize(
    "line",
    [
        "self.a: dict[str, float] = {}",
        "self.a = {}",
        "self.a = dict.fromkeys(names, 0.0)",
        "self.a = defaultdict(list)",
        "self.a: Counter[str] = Counter()",
        "self.a = {name for name in names}",
    ],
)
def test_a_part_with_books_of_its_own_is_seen(line: str) -> None:
    assert list(mappings(ast.parse(f"class Part:\n def __init__(self):\n  {line}"))) == ["Part.a"]


def test_a_field_of_a_mutable_class_is_seen_and_a_value_is_not() -> None:
    field = "class {}:\n a: dict[str, int] = field(default_factory=dict)"
    assert list(mappings(ast.parse("@dataclass\n" + field.format("Part")))) == ["Part.a"]
    assert list(mappings(ast.parse("@dataclass(frozen=True)\n" + field.format("Value")))) == []


# Objects that get the object that makes them, with the reason.
OWNERS_HANDED = {
    "policies/model/block_matrix.py Blocks: BlockMatrix": "a value in these blocks, which do not hold it",
}


def passes_self(call: ast.Call) -> bool:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(it, ast.Name) and it.id == "self" for argument in arguments for it in flat(argument))


def flat(argument: ast.expr) -> list[ast.expr]:
    """Return the items of a literal, or the argument itself."""
    if isinstance(argument, ast.Starred):
        return flat(argument.value)
    return argument.elts if isinstance(argument, ast.Tuple | ast.List | ast.Set) else [argument]


def makes_object(call: ast.Call) -> bool:
    """Return whether a call is of a class, directly or bound by ``partial``."""
    name = ast.unparse(call.func).split(".")[-1]
    if name == "partial" and call.args:
        name = ast.unparse(call.args[0]).split(".")[-1]
    return name.lstrip("_")[:1].isupper()


def handed_owners(tree: ast.AST) -> Iterator[str]:
    """Yield each place where an object gives itself to one that it makes or holds."""
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(kind):
            if isinstance(node, ast.Call) and passes_self(node) and makes_object(node):
                yield f"{kind.name}: {ast.unparse(node.func)}"
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                attributes = [ast.unparse(target) for target in targets if isinstance(target, ast.Attribute)]
                made = node.value  # a call of a class is seen above
                given_away = isinstance(made, ast.Name) and made.id == "self"
                if given_away or (isinstance(made, ast.Call) and passes_self(made) and not makes_object(made)):
                    yield from (f"{kind.name}: {attribute}" for attribute in attributes)


def test_no_object_gets_the_object_that_owns_it() -> None:
    handed = {
        f"{shown(path)} {place}" for part in PRODUCT for path, tree in modules(part) for place in handed_owners(tree)
    }
    assert handed == OWNERS_HANDED.keys()


@pytest.mark.parametrize(
    "line",
    [
        "self.part = Part(self)",
        "self.part = Part(1, owner=self)",
        "self.parts = [Part((self, 1))]",
        "part = rooms.Part(self)",
        "self.make = partial(Part, self)",
        "self.part = make_part(self)",
        "self.part.owner = self",
    ],
)
def test_an_owner_that_is_handed_to_its_part_is_seen(line: str) -> None:
    assert list(handed_owners(ast.parse(f"class Owner:\n def start(self):\n  {line}")))


def test_a_method_may_be_handed_to_a_part() -> None:
    assert list(handed_owners(ast.parse("class A:\n def start(self):\n  self.part = Part(self.tell, self.name)"))) == []


# Public functions and fields with a ``dict[str, Any]``, by the reason.
UNTYPED = {
    "a JSON document that is written": {
        "conf/render.py to_document",
        "daemon/cli/client.py ControllerClient.preview_drain",
        "daemon/key_change.py make",
        "daemon/key_change.py retire",
        "daemon/key_change.py rotate",
        "policies/scenarios/scenario.py to_document",
    },
    "a line of the history as --json has it, of messages of any release": {
        "daemon/cli/history.py HistoryReader.first",
        "daemon/cli/history.py HistoryReader.follow",
        "daemon/cli/tables.py history_line",
    },
    "what templates are filled with, and the page's JSON": {
        "daemon/web/decisions.py decision_rows",
        "daemon/web/decisions.py drain_rows",
        "daemon/web/decisions.py migration_rows",
        "daemon/web/placement.py application_rows",
        "daemon/web/placement.py busiest_partitions",
        "daemon/web/rendering.py fragment",
        "daemon/web/rendering.py page",
        "daemon/web/view_model.py build_document",
    },
    "parts of a message whose types are of another module or another release": {
        "wire/commands.py decode",
        "wire/commands.py encode",
        "wire/messages.py Reply.data",
        "wire/messages.py Request.command",
    },
    "the fields of INFO, which differ from server to server": {
        "daemon/doctor/cluster.py check_memory",
        "daemon/doctor/host.py RedisFacts.info",
        "wire/redis/store.py Store.info",
    },
    "parameters of a policy, which may be a user's; the registry checks them against its class": {
        "conf/settings.py Settings.policies",
        "daemon/decide/policy_settings.py parameters_for",
        "policies/registry.py make_parameters",
        "policies/registry.py parameter_types",
        "policies/registry.py propose",
        "policies/scenarios/compare.py compare",
    },
    "keyword arguments of a constructor, ours or redis-py's": {
        "wire/messages.py PartitionMove.shared_fields",
        "wire/redis/tls.py connection_options",
        "wire/redis/tls.py tls_options",
    },
}
ANY_DICT = re.compile(r"\b(dict|Mapping)\[str, (Any|object)\]")


def dotted(path: Path) -> str:
    return ".".join(("rechannel", *path.relative_to(ROOT).with_suffix("").parts))


def any_dict_names(tree: ast.Module) -> set[str]:
    """Return the names that a module gives to types with a ``dict[str, Any]``."""
    assigned = (node for node in tree.body if isinstance(node, ast.Assign) and ANY_DICT.search(ast.unparse(node.value)))
    return {ast.unparse(node.targets[0]) for node in assigned if isinstance(node.value, ast.Subscript | ast.BinOp)}


@cache
def any_dict_aliases() -> frozenset[tuple[str, str]]:
    """Return modules and the names in them for types with a ``dict[str, Any]``."""
    all_modules = (item for part in PRODUCT for item in modules(part))
    return frozenset((dotted(path), name) for path, tree in all_modules for name in any_dict_names(tree))


def public_annotations(body: Iterable[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.expr]]:
    """Yield each annotation of the public functions, methods and fields, with their name."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_annotations(node.body, f"{owner}{node.name}.")
        elif isinstance(node, ast.AnnAssign) and owner and not ast.unparse(node.target).startswith("_"):
            yield owner + ast.unparse(node.target), node.annotation
        elif isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
            arguments = [arg.annotation for arg in ast.walk(node.args) if isinstance(arg, ast.arg)]
            yield from ((owner + node.name, it) for it in [node.returns, *arguments] if it is not None)


def untyped(tree: ast.Module, module: str = "") -> set[str]:
    """Return the public functions and fields of a module that have a ``dict[str, Any]``."""
    aliases = any_dict_names(tree)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            aliases |= {it.asname or it.name for it in node.names if (node.module, it.name) in any_dict_aliases()}
    return {
        name
        for name, annotation in public_annotations(tree.body)
        if ANY_DICT.search(ast.unparse(annotation)) or aliases.intersection(re.findall(r"\w+", ast.unparse(annotation)))
    }


def test_modules_exchange_types_and_not_dictionaries_of_anything() -> None:
    seen = {f"{shown(path)} {name}" for part in PRODUCT for path, tree in modules(part) for name in untyped(tree)}
    assert seen == {name for names in UNTYPED.values() for name in names}


@pytest.mark.parametrize(
    "text",
    [
        "def f(a: dict[str, Any]) -> None: ...",
        "def f() -> list[dict[str, object]]: ...",
        "class f:\n a: Mapping[str, Any] = {}",
        "class f:\n def g(self, *, a: dict[str, Any] | None = None) -> None: ...",
        "Row = dict[str, Any]\ndef f() -> list[Row]: ...",
        "from rechannel.daemon.cli.history import Entry\ndef f(entry: Entry) -> None: ...",
    ],
)
def test_a_dictionary_of_anything_is_seen(text: str) -> None:
    assert {name.split(".")[0] for name in untyped(ast.parse(text))} == {"f"}


def test_a_private_function_may_take_a_dictionary_of_anything() -> None:
    assert untyped(ast.parse("def _f(a: dict[str, Any]) -> None: ...\ndef g(a: dict[str, int]) -> None: ...")) == set()
