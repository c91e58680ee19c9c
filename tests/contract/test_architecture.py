"""The walls between the rooms."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = [
    path
    for room in ("shared/eunoe", "filter/eunoe_hosts", "observer/eunoe_observer")
    for path in sorted((ROOT / room).rglob("*.py"))
]


def test_imports_run_one_way():
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_a_module_the_wrong_way_is_noticed(tmp_path):
    """The linter itself works: a wrong import in a copy of the packages is refused."""
    for room in ("shared", "filter", "observer"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    memo = tmp_path / "shared" / "eunoe" / "memo.py"
    memo.write_text(
        "from eunoe_hosts import open_webui\n" + memo.read_text(encoding="utf-8"), encoding="utf-8"
    )
    linter = Path(sys.executable).with_name("lint-imports")
    paths = ":".join(str(tmp_path / room) for room in ("shared", "filter", "observer"))
    done = subprocess.run(
        [linter, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 1
    assert "The engine knows neither hosts nor observer" in done.stdout


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_small_and_documented(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.count("\n") <= 450
    if "migrations" in path.parts:
        return
    assert ast.get_docstring(tree) or not text.strip()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno <= 60, node.name
    for node in tree.body:
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) and not node.name.startswith("_"):
            assert ast.get_docstring(node), node.name


def test_no_module_has_a_catch_all_name():
    assert not {p.stem for p in MODULES} & {"utils", "util", "common", "helpers", "misc", "manager"}
