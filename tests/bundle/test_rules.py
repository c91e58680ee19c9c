"""Sources that one file can't have are refused, with file, line and reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .repository import HOST, PLAN, Repository

HOST_PATH = "filter/eunoe_hosts/open_webui.py"
PLAN_PATH = "shared/eunoe/plan.py"
OTHER = "def other() -> None: ...\n"

# Code for the top of a module, and the reason it is refused for; → stands before the refused line if it is
# not the first.
LINES = {
    "1 a module": ("from . import other", "imported from the module that defines it"),
    "1 a package": ("from .deep import deep", "imported from the module that defines it"),
    "1 an alias": ("from .other import other as another", "without an alias"),
    "1 a star": ("from .other import *", "without a star"),
    "1 an absolute import": ("from eunoe.other import other", "`from .x import Name`"),
    "1 a module object": ("import eunoe.other", "`from .x import Name`"),
    "1 a host": ("from ..eunoe_hosts.open_webui import Filter", "no such module of the engine"),
    "1 no such module": ("from .missing import other", "no such module of the engine"),
    "1 no such name": ("from .other import missing", "other.py does not define `missing`"),
    "1 a name from where it is only imported": ("from .other import json", "does not define `json`"),
    "1 late": ("X = 1\n→from .other import other", "at the top of the file"),
    "3 in a function": ("def f():\n→    from .other import other", "at the top of the file"),
    "1 late, after a text": ('X = 1\n"""What X is."""\n→from .other import other', "at the top of the file"),
    "3 in a function, for types": (
        "TYPE_CHECKING = 0\ndef f():\n    if TYPE_CHECKING:\n→        from .other import other", "at the top"),
    "3 in a class": ("class X:\n→    from .other import other", "at the top of the file"),
    "3 optional": ("try:\n→    from .other import other\nexcept ImportError:\n    pass", "unconditionally"),
    "4 Pipe": ("class Pipe: ...", "`Pipe` is taken"),
    "4 Action": ("def Action(): ...", "`Action` is taken"),
    "4 Event by import": ("from asyncio import Event", "`Event` is taken"),
    "4 Tools": ("Tools = ()", "`Tools` is taken"),
    "4 our own table": ("_SECTIONS = ()", "`_SECTIONS` is taken"),
    "5 utils, in a comment": ("# from utils", '"from utils"'),
    "5 apps, in a text": ("X = 'away from apps'", '"from apps"'),
    "5 main, in a longer word": ("X = 'from mainland'", '"from main"'),
    "5 config, in an import": ("from configparser import ConfigParser", '"from config"'),
    "6 __name__": ("X = __name__", "`__name__`"),
    "6 __file__": ("def f():\n→    return __file__", "`__file__`"),
    "6 pickle": ("import pickle", "`pickle`"),
    "6 pickle in a function": ("def f():\n→    from pickle import dumps", "`pickle`"),
    "6 getsource": ("import inspect\n→X = inspect.getsource(f)", "`inspect.getsource`"),
    "6 getsource by import": ("from inspect import getsource", "`inspect.getsource`"),
    "6 data files of the package": ("import importlib.resources", "`importlib.resources`"),
    "7 a type statement": ("X = 1\n→type Y = int", "not Python 3.11"),
    "7 type parameters": ("def f[T](x: T) -> T: ...", "not Python 3.11"),
    "8 a call": ("print('loaded')", "only imports and defines, not Expr"),
    "8 if": ("if True:\n    X = 1", "only imports and defines, not If"),
    "8 if, around an import": ("if True:\n    import json", "not If"),
    "8 if for types, with an else": (
        "from typing import TYPE_CHECKING\n→if TYPE_CHECKING:\n    import re\nelse:\n    import json", "not If"),
    "8 if for types, with more": (
        "from typing import TYPE_CHECKING\n→if TYPE_CHECKING:\n    X = 1", "not If"),
    "8 for": ("for x in ():\n    pass", "only imports and defines, not For"),
    "8 while": ("while False:\n    pass", "only imports and defines, not While"),
    "8 with": ("with open('x') as x:\n    pass", "only imports and defines, not With"),
    "8 a try that does more": ("try:\n    import redis\n    f()\nexcept ImportError:\n    pass", "not Try"),
    "8 a try that computes": ("try:\n    import redis\nexcept ImportError:\n    redis = f()", "not Try"),
    "8 a try for all errors": ("try:\n    import redis\nexcept:\n    pass", "not Try"),
    "8 a try for other errors": ("try:\n    import redis\nexcept Exception:\n    pass", "not Try"),
    "8 a changed object": ("X = {}\n→X['a'] = 1", "only imports and defines, not Assign"),
    "8 a changed name": ("X = 1\n→X += 1", "only imports and defines, not AugAssign"),
    "8 a deleted name": ("X = 1\n→del X", "only imports and defines, not Delete"),
    "8 two statements on a line": ("import json; import re", "one statement on a line"),
    "9 a package that is not there": ("import requests", "`requests` is not part of every Open WebUI"),
    "9 the same in a function": ("def f():\n→    import requests", "`requests` is not part"),
    "9 structlog, required": ("import structlog", "`structlog` may be missing"),
    "9 open_webui, required": ("from open_webui.env import VERSION", "`open_webui` may be missing"),
    "9 starlette, required": ("from starlette.requests import Request", "`starlette` may be missing"),
    "9 gone in Python 3.12": ("import distutils", "`distutils` is not part of every Open WebUI"),
    "a builtin name": ("def filter(): ...", "`filter` is taken"),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_a_line_of_the_engine_is_refused(repository: Repository, case: str) -> None:
    code, reason = LINES[case]
    line = 1 + code[: code.find("→") + 1].count("\n")
    code = code.replace("→", "")
    repository.engine(other="import json\n" + OTHER, plan=f"{code}\n\n\ndef plan(body): ...\n")
    repository.write("shared/eunoe/deep/__init__.py", "")
    repository.write("shared/eunoe/deep/deep.py", "def deep(): ...\n")

    (breach,) = [breach for breach in repository.breaches() if reason in breach]

    assert re.fullmatch(rf"{PLAN_PATH}:{line}: .+", breach)


@pytest.mark.parametrize(
    ("code", "reason"),
    {
        "from eunoe import plan": "imported from the module that defines it",
        "from .other import Other": "`from eunoe.x import Name`",
        "from eunoe_hosts.middleware import Other": "no such module of the engine",
        "import eunoe.plan": "`from eunoe.x import Name`",
        "from eunoe.plan import plan as draft": "without an alias",
        "from eunoe.plan import *": "without a star",
    }.items(),
)
def test_an_import_of_the_host_is_refused(repository: Repository, code: str, reason: str) -> None:
    repository.write("filter/eunoe_hosts/middleware.py", "Other = 1\n")
    repository.host(f'"""The host."""\n\n{code}\n\n\nclass Filter: ...\n')

    (breach,) = repository.breaches()

    assert breach.startswith(f"{HOST_PATH}:3: ")
    assert reason in breach


def test_one_name_for_two_things_is_refused_where_it_comes_second(repository: Repository) -> None:
    repository.engine(
        plan="from .other import other\n\nLIMIT = 1\n\n\ndef plan(body): ...\n",
        other="import json\n\nLIMIT = 2\n\n\ndef other(): ...\n",
    )

    assert repository.breaches() == [
        "shared/eunoe/plan.py:3: `LIMIT` already means something else in shared/eunoe/other.py:3"
    ]


@pytest.mark.parametrize(
    ("mine", "yours"),
    [
        ("import time", "from time import time"),
        ("from time import time", "def time(): ..."),
        ("import redis", "try:\n    import redis\nexcept ImportError:\n    redis = None"),
        ("import numpy as np", "import orjson as np"),
        ("LOGS = 1", "try:\n    import redis\nexcept ImportError:\n    LOGS = 0"),
        ("from datetime import UTC", "UTC = 'utc'"),
        ("CACHE = {}", "CACHE = {}"),
        ("LOCK = threading.Lock()", "LOCK = threading.Lock()"),
        ("def same(): ...", "def same(): ..."),
    ],
)
def test_names_collide(repository: Repository, mine: str, yours: str) -> None:
    """Equal statements collide too if running them twice makes two things."""
    repository.engine(
        plan=f"from .other import other\n{mine}\n\n\ndef plan(body): ...\n", other=f"{yours}\n{OTHER}"
    )

    (breach,) = repository.breaches()

    assert breach.startswith("shared/eunoe/plan.py:2: ")
    assert breach.endswith("already means something else in shared/eunoe/other.py:1")


def test_a_circle_of_imports_is_refused(repository: Repository) -> None:
    repository.engine(
        plan="from .a import a\n\n\ndef plan(body): ...\n",
        a='"""A."""\n\nfrom .b import b\n\n\ndef a(): ...\n',
        b="from .c import c\n\n\ndef b(): ...\n",
        c="from .a import a\n\n\ndef c(): ...\n",
    )

    (breach,) = repository.breaches()

    files = " → ".join(f"shared/eunoe/{name}.py" for name in "abca")
    assert breach == f"shared/eunoe/a.py:3: imports go in a circle: {files}"


def test_a_circle_that_only_types_close_is_none(repository: Repository) -> None:
    repository.engine(
        plan="from .a import a\n\n\nclass Plan: ...\n\n\ndef plan(body): ...\n",
        a=(
            "from __future__ import annotations\n\nfrom typing import TYPE_CHECKING\n\n"
            "if TYPE_CHECKING:\n    from .plan import Plan\n\n\ndef a(plan: Plan): ...\n"
        ),
    )

    text = repository.build()

    assert text.index("def a(plan: Plan)") < text.index("class Plan") < text.index("class Filter")
    assert "if TYPE_CHECKING" not in text


def test_what_is_needed_for_types_only_comes_before_the_host(repository: Repository) -> None:
    repository.engine(
        plan="from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from .z import Z\n\n\ndef plan(z: 'Z'): ...\n",
        y="class Y: ...\n",
        z="from .y import Y\n\n\nclass Z(Y): ...\n",
    )

    text = repository.build()

    assert text.index("class Y") < text.index("class Z") < text.index("class Filter")


@pytest.mark.parametrize(
    "code", ["X = 1", "import json", "def f(): ...", "print()", "from .plan import plan\nX = 1"]
)
def test_an_initializer_with_code_is_refused(repository: Repository, code: str) -> None:
    repository.write("shared/eunoe/__init__.py", f'"""The engine."""\n{code}\n')

    breaches = repository.breaches()

    line = 2 + code.count("\n")
    assert (
        f"shared/eunoe/__init__.py:{line}: an `__init__.py` only re-exports: the bundle leaves it out"
        in breaches
    )


def test_an_initializer_may_reexport_even_what_is_not_needed(repository: Repository) -> None:
    repository.engine(extra='print("extra")\n')
    repository.write(
        "shared/eunoe/__init__.py",
        '"""The engine."""\n\nfrom __future__ import annotations\n\n'
        "from .extra import extra\nfrom .plan import plan\n\n"
        '__all__ = ["extra", "plan"]\n',
    )

    text = repository.build()

    assert "__all__" not in text
    assert "made of 2 files" in text


def test_the_initializers_of_inner_packages_are_checked(repository: Repository) -> None:
    repository.engine(plan="from .deep.well import water\n\n\ndef plan(body): ...\n")
    repository.write("shared/eunoe/deep/well.py", "def water(): ...\n")
    repository.write("shared/eunoe/deep/__init__.py", "WET = True\n")

    (breach,) = repository.breaches()

    assert breach.startswith("shared/eunoe/deep/__init__.py:1: an `__init__.py` only re-exports")


def test_a_host_without_a_filter_is_refused(repository: Repository) -> None:
    repository.host(HOST.replace("Filter", "Sieve"))

    assert repository.breaches() == [f"{HOST_PATH}:1: the host defines no `Filter`"]


def test_a_missing_host_is_refused(repository: Repository) -> None:
    (repository.root / HOST_PATH).unlink()

    assert repository.breaches() == [f"{HOST_PATH}:1: the host defines no `Filter`"]


def test_all_breaches_are_told_at_once_in_order(repository: Repository) -> None:
    repository.host(HOST.replace("return plan(body)", "return plan(body, __name__)  # from main"))
    repository.engine(plan="print()\nimport pickle\n" + PLAN)

    places = [breach.rpartition(": ")[0].split(": ")[0] for breach in repository.breaches()]

    assert places == [f"{HOST_PATH}:12", f"{HOST_PATH}:12", f"{PLAN_PATH}:1", f"{PLAN_PATH}:2"]


def test_what_is_allowed_is_not_refused(repository: Repository) -> None:
    repository.engine(
        plan='''\
"""The plan."""

from __future__ import annotations

import importlib.util
import json as j
import os.path
import re
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel

try:
    import structlog
except ModuleNotFoundError:
    structlog = None
else:
    LOGS: bool = True

if TYPE_CHECKING:
    from litellm import Router

__all__ = ["plan"]

T = TypeVar("T")
WORD = re.compile("[a-z]+")
"""An attribute's docstring."""
LOW, HIGH = 1, 2
TABLE: dict[str, Any] = {name: len(name) for name in ("a", "b")}
annotated: int


class Model(BaseModel):
    """A model with a class inside."""

    name: str = "a"

    class Event: ...


def plan(body: T, router: Router) -> T:
    """Import late what may be missing."""
    from starlette.requests import Request

    print(type(body).__name__, Request, j, np, importlib, os, __import__)
    return body


async def later(): ...
'''
    )

    assert repository.breaches() == []


@pytest.mark.parametrize("arguments", [[], ["--check"]])
def test_the_command_prints_each_breach_on_a_line(repository: Repository, arguments: list[str]) -> None:
    repository.engine(plan="print()\nimport pickle\n" + PLAN)

    done = repository.run(*arguments)

    assert (done.returncode, done.stderr.splitlines()) == (1, repository.breaches())
    assert not repository.bundle.exists()


def test_the_command_writes_the_bundle_and_then_finds_it_fresh(
    repository: Repository, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.py"

    for arguments in ([], ["--check"], ["--output", str(copy)], ["--check", "--output", str(copy)]):
        done = repository.run(*arguments)
        assert (done.returncode, done.stderr) == (0, "")

    assert (
        repository.bundle.read_text(encoding="utf-8")
        == copy.read_text(encoding="utf-8")
        == repository.build()
    )


@pytest.mark.parametrize("is_there", [True, False])
def test_the_check_fails_on_a_stale_or_missing_bundle_and_writes_nothing(
    repository: Repository, is_there: bool
) -> None:
    if is_there:
        repository.bundle.write_text("old", encoding="utf-8")

    done = repository.run("--check")

    assert done.returncode == 1
    assert done.stderr == f"{repository.bundle} is stale: run `make bundle` and commit it\n"
    assert repository.bundle.exists() == is_there
    assert not is_there or repository.bundle.read_text(encoding="utf-8") == "old"
