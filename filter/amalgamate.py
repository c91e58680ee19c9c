"""Flattens the engine and its Open WebUI host into the one file an administrator pastes.

Names stay as they are and lines keep their text, so all sources must fit into one namespace.
What does not fit is refused with its file and line, never renamed.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import graphlib
import hashlib
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = "filter/eunoe_filter.py"
HOST = "eunoe_hosts.open_webui"
HOST_PARTS = f"{HOST}_"  # the host's own modules besides: their names begin so
FOLDERS = {"eunoe": "shared", "eunoe_hosts": "filter"}  # where each of our packages lies
TABLE = "_SECTIONS"
WIDTH = 110  # of a section mark

# The loader replaces these wherever they stand, in prose as well as in code.
REWRITTEN = ("from utils", "from apps", "from main", "from config")
# The loader looks for these besides our `Filter`.
LOOKED_FOR = frozenset({"Pipe", "Action", "Event", "Tools"})
# A module made of a string has another name on each load, no lasting file and no package.
UNSTABLE_NAMES = frozenset({"__name__", "__file__", "__package__", "__spec__"})
UNSTABLE_IMPORTS = frozenset({"pickle", "inspect.getsource", "importlib.metadata", "importlib.resources"})
STANDARD = sys.stdlib_module_names - {"asynchat", "asyncore", "distutils", "imp", "smtpd"}  # gone in 3.12
SHIPPED = STANDARD | {"aiosqlite", "httpx", "numpy", "orjson", "pydantic", "redis", "tiktoken"}
SOMETIMES_THERE = frozenset({"open_webui", "starlette", "structlog"})
# Calls that give an equal value each time, so that two equal assignments may become one.
REPEATABLE = frozenset({"logging.getLogger", "re.compile", "ParamSpec", "TypeVar"})

# The `request` hook appeared in 0.11.2; without it a filter does not see what is really sent.
INTRODUCTION = '''\
"""
title: Eunoe
author: The Eunoe authors
version: {version}
license: {license}
description: {description}
required_open_webui_version: 0.11.2
"""

# This file is generated, do not edit it: change the files it is made of and run `make bundle`.
# It is Eunoe {version}, made of {count} files; the SHA-256 digest of their text is
# {digest}.

from __future__ import annotations
'''

AnyImport: TypeAlias = ast.Import | ast.ImportFrom
When: TypeAlias = Literal["at load", "perhaps", "for types"]
Role: TypeAlias = Literal["text", "left out", "hoisted", "definition", "other"]
Breach: TypeAlias = tuple[str, int, str]  # path, line, reason


class Refused(Exception):
    """The sources break the rules; `breaches` has a line of text for each place."""

    def __init__(self, breaches: Iterable[Breach]) -> None:
        self.breaches = [f"{path}:{line}: {reason}" for path, line, reason in sorted(set(breaches))]
        super().__init__("\n".join(self.breaches))


@dataclass(frozen=True, slots=True)
class Source:
    """One source file, as text and as a tree."""

    name: str  # dotted, as it is imported
    path: str  # from the root of the repository
    text: str
    tree: ast.Module

    def breach(self, node: ast.stmt | ast.expr, reason: str) -> Breach:
        """Say what is wrong with a node."""
        return self.path, node.lineno, reason


def imports_of(node: ast.AST, when: When = "at load") -> Iterator[tuple[AnyImport, When]]:
    """Find all imports below a node, each with the moment it runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, AnyImport):
            yield child, when
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or is_optional_import(child):
            yield from imports_of(child, "perhaps")
        elif when == "at load" and is_for_types(child):
            yield from imports_of(child, "for types")
        else:
            yield from imports_of(child, when)


def is_optional_import(node: ast.AST) -> bool:
    """Whether the node is a `try` that only imports or sets constants, and expects an ImportError."""
    if not isinstance(node, ast.Try):
        return False
    caught = {handler.type and ast.unparse(handler.type) for handler in node.handlers}
    return {"ImportError", "ModuleNotFoundError"} >= caught > set() and all(
        isinstance(part, ast.Import | ast.ImportFrom | ast.Pass)
        or (isinstance(part, ast.Assign | ast.AnnAssign) and isinstance(part.value, ast.Constant))
        for part in ast.walk(node)
        if isinstance(part, ast.stmt) and part is not node
    )


def is_for_types(node: ast.AST) -> bool:
    """Whether the node is an `if TYPE_CHECKING` that only imports."""
    if not isinstance(node, ast.If) or node.orelse or ast.unparse(node.test) != "TYPE_CHECKING":
        return False
    return all(isinstance(part, AnyImport) for part in node.body)


def role_of(node: ast.stmt) -> Role:
    """Say what a top-level statement is to the bundle; "other" is what it can't have."""
    role: Role = "definition" if names_set(node) else "other"
    match node:
        case ast.Expr(ast.Constant(str())):
            role = "text"
        case ast.Assign(targets=[ast.Name("__all__")]) | ast.AnnAssign(target=ast.Name("__all__")):
            role = "left out"
        case ast.ImportFrom(module, level=level) if level or str(module).partition(".")[0] in FOLDERS:
            role = "left out"
        case ast.ImportFrom("__future__"):
            role = "left out"
        case ast.Import() | ast.ImportFrom():
            role = "hoisted"
        case ast.Try() | ast.If() if is_optional_import(node) or is_for_types(node):
            role = "hoisted" if isinstance(node, ast.Try) else "left out"
    return role


def names_set(node: ast.AST) -> list[str]:
    """List the names a statement defines; none if it changes anything but names."""
    match node:
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
            return [name]
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inner = [part.target for part in ast.walk(node) if isinstance(part, ast.NamedExpr)]
            parts = [part for target in [*targets, *inner] for part in ast.walk(target)]
            if not any(isinstance(part, ast.Attribute | ast.Subscript) for part in parts):
                return [part.id for part in parts if isinstance(part, ast.Name)]
    return []


def meanings(source: Source) -> Iterator[tuple[str, str, ast.stmt]]:
    """List the names a module brings into the bundle, each with a text that differs if the meaning does."""
    for statement in source.tree.body:
        role, code = role_of(statement), ast.unparse(statement)
        if role == "definition":
            value = getattr(statement, "value", None)
            repeatable = isinstance(value, ast.Call) and ast.unparse(value.func) in REPEATABLE
            meaning = code if repeatable or isinstance(value, ast.Constant) else source.path
            yield from ((name, meaning, statement) for name in names_set(statement))
        for part in ast.walk(statement) if role == "hoisted" else ():
            yield from ((name, code, statement) for name in names_set(part))
            if isinstance(part, ast.alias):
                name = part.asname or part.name.partition(".")[0]
                alone = f"{getattr(statement, 'module', '')}:{part.name if part.asname else name}"
                yield name, alone if isinstance(statement, AnyImport) else code, statement


def target_of(source: Source, node: AnyImport) -> str | None:
    """Name the module of ours an import is of, without leading dots; others' modules are `None`."""
    if isinstance(node, ast.ImportFrom) and node.level:
        return ".".join([*source.name.split(".")[: -node.level], *([node.module] if node.module else [])])
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return next((module for module in modules if module.partition(".")[0] in FOLDERS), None)


def reach(root: Path) -> dict[str, Source]:
    """Read the host, every engine module it needs and their packages, all as Python 3.11."""
    sources: dict[str, Source] = {}
    breaches: list[Breach] = []
    waiting = [HOST]
    while waiting:
        name = waiting.pop()
        path = "/".join([FOLDERS.get(name.partition(".")[0], "."), *name.split(".")]) + ".py"
        if name in sources or not (root / path).is_file():
            continue  # the imports of a missing file are refused
        text = (root / path).read_text(encoding="utf-8")
        try:
            sources[name] = source = Source(name, path, text, ast.parse(text, feature_version=(3, 11)))
        except SyntaxError as error:
            breaches.append((path, error.lineno or 1, f"not Python 3.11: {error.msg}"))
            continue
        targets = [target_of(source, node) or "" for node, _ in imports_of(source.tree)]
        if not name.endswith("__init__"):  # what it re-exports is not needed for that
            waiting += [target for target in targets if target.startswith(("eunoe.", HOST_PARTS))]
            waiting += [f"{each.rpartition('.')[0]}.__init__" for each in (name, *targets) if "." in each]
    if breaches:
        raise Refused(breaches)
    return dict(sorted(sources.items()))


def in_order(sources: Mapping[str, Source]) -> list[Source]:
    """Put each module after those it needs, and the host last; the initializers are left out."""
    graph: dict[str, dict[str, AnyImport]] = {name: {} for name in sources if not name.endswith("__init__")}
    for name, needs in graph.items():
        found = [node for node, when in imports_of(sources[name].tree) if when == "at load"]
        needs.update({target: node for node in found if (target := target_of(sources[name], node))})
    try:
        order = [*graphlib.TopologicalSorter(graph).static_order()]
    except graphlib.CycleError as error:
        circle = error.args[1][::-1]  # each one imports the next
        reason = "imports go in a circle: " + " → ".join(sources[name].path for name in circle)
        raise Refused([sources[circle[0]].breach(graph[circle[0]][circle[1]], reason)]) from error
    return [sources[name] for name in sorted(order, key=lambda name: name == HOST)]


def code_breaches(source: Source) -> Iterator[Breach]:
    """Find words that the loader rewrites, and code that means something else in the module it makes."""
    for number, line in enumerate(source.text.split("\n"), 1):
        for phrase in (phrase for phrase in REWRITTEN if phrase in line):
            yield source.path, number, f'Open WebUI rewrites "{phrase}", even within a text'
    for node in ast.walk(source.tree):
        match node:
            case ast.Name(name) if name in UNSTABLE_NAMES:
                yield source.breach(node, f"`{name}` is not what it seems in Open WebUI")
            case ast.Attribute(ast.Name(module), name) if f"{module}.{name}" in UNSTABLE_IMPORTS:
                yield source.breach(node, f"`{module}.{name}` finds nothing of ours in Open WebUI")


def shape_breaches(source: Source) -> Iterator[Breach]:
    """Find top-level statements that do more than define, or that can't be told apart by line."""
    end, imports_may_come = 0, True
    for statement in source.tree.body:
        role, kind = role_of(statement), type(statement).__name__
        if role == "other":
            yield source.breach(statement, f"module-level code only imports and defines, not {kind}")
        if kind in {"Import", "ImportFrom", "Try", "If"} and not imports_may_come:
            yield source.breach(statement, "imports stand at the top of the file")
        if statement.lineno == end:
            yield source.breach(statement, "one statement on a line")
        if source.name.endswith("__init__") and role not in {"text", "left out"}:
            yield source.breach(statement, "an `__init__.py` only re-exports: the bundle leaves it out")
        end = statement.end_lineno or 0
        imports_may_come = imports_may_come and role != "definition"


def import_breaches(source: Source, sources: Mapping[str, Source]) -> Iterator[Breach]:
    """Find imports that a flat file can't drop, and those that Open WebUI can't serve."""
    for node, when in imports_of(source.tree):
        target = target_of(source, node)
        reasons = internal(source, node, when, sources.get(target)) if target else external(node, when)
        if any(alias.name == "*" for alias in node.names):
            reasons = iter(["names are imported one by one, without a star"])
        yield from (source.breach(node, reason) for reason in reasons)


def internal(source: Source, node: AnyImport, when: When, target: Source | None) -> Iterator[str]:
    """Say why dropping an import of our own would change the code."""
    is_host = source.name.startswith(HOST)
    if when != "for types" and node not in source.tree.body:
        yield "our own modules are imported at the top of the file, unconditionally"
    if any(alias.asname for alias in node.names):
        yield "our own names are imported as they are, without an alias"
    if isinstance(node, ast.Import) or (node.level == 0) != is_host:
        yield f"our own names are imported as `{'from eunoe.x' if is_host else 'from .x'} import Name`"
    elif target is None or target.name == HOST or (target.name.startswith(HOST) and not is_host):
        yield "no such module of the engine: each name is imported from the module that defines it"
    else:
        definitions = [part for part in target.tree.body if role_of(part) == "definition"]
        defined = {name for part in definitions for name in names_set(part)}
        for name in {alias.name for alias in node.names} - defined:
            yield f"{target.path} does not define `{name}`"


def external(node: AnyImport, when: When) -> Iterator[str]:
    """Say why an import of others' code may fail or mislead in Open WebUI."""
    modules = {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        modules = {node.module or "", *(f"{node.module}.{name}" for name in modules)}
    for module in modules & UNSTABLE_IMPORTS:
        yield f"`{module}` finds nothing of ours in Open WebUI"
    for package in {module.partition(".")[0] for module in modules} - SHIPPED:
        if package in SOMETIMES_THERE and when == "at load":
            yield f"`{package}` may be missing: import it in `try`/`except ImportError` or in a function"
        elif package not in SOMETIMES_THERE and when != "for types":
            yield f"`{package}` is not part of every Open WebUI"


def name_breaches(sources: Iterable[Source], taken: frozenset[str]) -> Iterator[Breach]:
    """Find names that can't keep their meaning in one namespace that the loader searches."""
    first: dict[str, tuple[str, Breach]] = {}
    for source in sources:
        for name, meaning, statement in meanings(source):
            meant, (path, line, _) = first.setdefault(name, (meaning, source.breach(statement, "")))
            if meant != meaning:
                yield source.breach(statement, f"`{name}` already means something else in {path}:{line}")
            if name in taken or hasattr(builtins, name):
                yield source.breach(statement, f"`{name}` is taken by Python, Open WebUI or the bundle")
    if "Filter" not in first:
        yield f"filter/{HOST.replace('.', '/')}.py", 1, "the host defines no `Filter`"


def first_line(source: Source, statement: ast.stmt) -> int:
    """Say where a statement begins, with the comment that stands right above it."""
    lines, start = source.text.split("\n"), statement.lineno
    end = max((other.end_lineno or 0 for other in source.tree.body if other.lineno < start), default=0)
    while start - 1 > end and lines[start - 2].startswith("#"):
        start -= 1
    return start


def kept_lines(source: Source, written: set[str]) -> list[tuple[int, str]]:
    """Number the lines that go into the bundle; `written` gathers the assignments that it has."""
    gone: set[int] = set()
    for index, statement in enumerate(source.tree.body):
        code, role = ast.unparse(statement), role_of(statement)
        if role in {"left out", "hoisted"} or (role == "text" and index == 0) or code in written:
            gone.update(range(first_line(source, statement), (statement.end_lineno or 0) + 1))
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            written.add(code)
    kept: list[tuple[int, str]] = []
    for number, line in enumerate(source.text.split("\n"), 1):
        follows_on = bool(kept) and kept[-1][0] == number - 1
        if number not in gone and (line or follows_on or (kept and kept[-1][1])):
            kept.append((number, line))
    while kept and not kept[-1][1]:
        kept.pop()
    return kept


def import_block(sources: Iterable[Source]) -> list[str]:
    """Merge what the modules import of others; optional imports keep their text."""
    modules: set[str] = set()
    names: dict[str, set[str]] = {}
    optional: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.Import):
                modules.update(map(ast.unparse, node.names))
            elif isinstance(node, ast.ImportFrom) and role_of(node) == "hoisted":
                names.setdefault(node.module or "", set()).update(map(ast.unparse, node.names))
            elif isinstance(node, ast.Try):
                lines = source.text.split("\n")[first_line(source, node) - 1 : node.end_lineno]
                optional.setdefault(ast.unparse(node), ["", *lines])
    block = [f"import {module}" for module in sorted(modules)]
    for module, imported in sorted(names.items()):
        block.append(f"from {module} import {', '.join(sorted(imported))}")
    return [*block, *(line for _, lines in sorted(optional.items()) for line in lines)]


def write(root: Path, sources: Sequence[Source]) -> str:
    """Put the bundle's text together."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    digest = hashlib.sha256("\0".join(f"{each.path}\0{each.text}" for each in sources).encode()).hexdigest()
    introduction = INTRODUCTION.format(**project, count=len(sources), digest=digest)
    lines = [*introduction.split("\n"), *import_block(sources)]
    rows: list[str] = []
    written: set[str] = set()
    for source in sources:
        label, previous = source.path.partition("/")[2], -1
        for number, line in kept_lines(source, written):
            if previous < 0:
                lines += ["", "", f"# ──── {label} ".ljust(WIDTH, "─"), ""]
            if number != previous + 1:
                rows.append(f'    ({len(lines) + 1}, "{label}", {number}),')
            lines.append(line)
            previous = number
    lines += ["", "", "# Where each source file starts in this one; error reports use it."]
    return "\n".join([*lines, f"{TABLE} = (", *rows, ")", ""])


def check(sources: Mapping[str, Source], taken: frozenset[str]) -> None:
    """Refuse sources that break a rule, with every place that does."""
    breaches = list(name_breaches(sources.values(), taken))
    for source in sources.values():
        breaches += [*code_breaches(source), *shape_breaches(source)]
        breaches += import_breaches(source, sources) if not source.name.endswith("__init__") else ()
    if breaches:
        raise Refused(breaches)


def build(root: Path = ROOT) -> str:
    """Make the bundle of the sources below `root`, or refuse them."""
    sources = reach(root)
    check(sources, LOOKED_FOR | {TABLE})
    text = write(root, in_order(sources))
    compile(text, BUNDLE, "exec", dont_inherit=True)
    check({HOST: Source(HOST, BUNDLE, text, ast.parse(text, feature_version=(3, 11)))}, LOOKED_FOR)
    return text


def main() -> str | None:
    """Write the bundle, or with `--check` compare it with the committed one; answers what went wrong."""
    parser = argparse.ArgumentParser(description="Make the file that is pasted into Open WebUI.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is stale")
    parser.add_argument("--output", type=Path, default=ROOT / BUNDLE, help=f"default: {BUNDLE}")
    options = parser.parse_args()
    try:
        text = build().encode()
    except Refused as refused:
        return str(refused)
    if not options.check:
        options.output.write_bytes(text)
    elif not options.output.is_file() or options.output.read_bytes() != text:
        return f"{options.output} is stale: run `make bundle` and commit it"
    return None


if __name__ == "__main__":
    sys.exit(main())
