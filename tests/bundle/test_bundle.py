"""The committed bundle is fresh, fit for Open WebUI's loader, and does nothing while it loads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import amalgamate

from .loader import REWRITES, evict, frontmatter_of, load, load_module, register, rewritten

REPORT = Path(__file__).with_name("report.py")
FOLDERS = {"eunoe": "shared", "eunoe_hosts": "filter"}
MARK = "# ──── "


def report(python: str, path: Path, *absent: str) -> dict[str, Any]:
    """Load a bundle in a process of its own, away from our packages, and tell what that did."""
    command = [python, "-B", "-I", "-W", "error", str(REPORT), str(path), *absent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=path.anchor)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def code_lines(text: str) -> dict[int, str]:
    """Number the lines from 1."""
    return dict(enumerate(text.split("\n"), 1))


def test_it_is_what_a_rebuild_gives(bundle: str) -> None:
    assert amalgamate.build() == bundle, "run `make bundle` and commit the result"


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    """Neither the order of sets nor the place of the checkout shows in it."""
    for seed in ("1", "2"):
        command = [sys.executable, amalgamate.__file__, "--output", str(tmp_path / seed)]
        subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed}, cwd=tmp_path)

    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_the_frontmatter_is_what_open_webui_reads(bundle: str) -> None:
    project = tomllib.loads((amalgamate.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert bundle.startswith('"""\n')
    assert frontmatter_of(bundle) == {
        "title": "Eunoe",
        "author": "The Eunoe authors",
        "version": project["version"],
        "license": project["license"],
        "description": project["description"],
        "required_open_webui_version": "0.11.2",
    }


def test_the_rewrite_leaves_it_as_it_is(bundle: str) -> None:
    assert [phrase for phrase in REWRITES if phrase in bundle] == []
    assert rewritten(bundle) == bundle


def test_filter_is_all_that_the_loader_could_take(bundle: str) -> None:
    names = vars(load(bundle).module)

    assert {"Pipe", "Filter", "Action", "Event", "Tools"} & names.keys() == {"Filter"}


def test_it_imports_nothing_of_ours(bundle: str) -> None:
    assert [line for line in bundle.split("\n") if re.match(r"\s*(from|import)\s+(\.|eunoe)", line)] == []


def test_every_line_is_the_source_line_that_its_table_says(bundle: str) -> None:
    """And every line between two marks is covered."""
    lines = code_lines(bundle)
    table = load(bundle).module._SECTIONS
    end = next(number for number, line in lines.items() if line == "_SECTIONS = (") - 3
    checked = set()
    for (start, label, source_start), following in zip(
        table, [*[row[0] for row in table[1:]], end], strict=True
    ):
        path = amalgamate.ROOT / FOLDERS[label.partition("/")[0]] / label
        source = code_lines(path.read_text(encoding="utf-8"))
        for number in range(start, following):
            if lines[number].startswith(MARK):
                break
            checked.add(number)
            assert lines[number] == source.get(number - start + source_start, ""), f"line {number}"

    first_mark = next(number for number, line in lines.items() if line.startswith(MARK))
    unchecked = [lines[number] for number in range(first_mark, end) if number not in checked]
    assert [line for line in unchecked if line and not line.startswith(MARK)] == []


def test_each_source_it_needs_is_in_its_table_once_under_its_mark(bundle: str) -> None:
    lines = code_lines(bundle)
    labels = list(dict.fromkeys(label for _, label, _ in load(bundle).module._SECTIONS))

    assert labels == [line.split()[2] for line in lines.values() if line.startswith(MARK)]
    assert labels[-1] == "eunoe_hosts/open_webui.py"


def test_an_error_on_any_line_is_reported_at_its_true_line(bundle: str) -> None:
    module = load(bundle).module
    for start, label, source in module._SECTIONS:
        try:
            exec("\n" * start + "raise ValueError", vars(module))
        except ValueError as error:
            places = module.locate(error)
        assert places[-1].startswith(f"{label}:{source + 1} in ")


def test_the_shape_of_the_valves_can_be_asked_for_in_and_out_of_the_cache(bundle: str) -> None:
    """Nothing is left to be looked up through `sys.modules` later."""
    loaded = load(bundle)
    schemas = []
    for place in (register, evict):
        place(loaded.module)
        instance = loaded.module.Filter()
        schemas.append(type(instance.valves).model_json_schema())
        assert (
            loaded.module.Filter.UserValves().model_dump()
            == loaded.module.Filter.UserValves.model_validate({}).model_dump()
        )

    assert loaded.kind == "filter"
    assert schemas[0] == schemas[1] != {}


def test_a_second_load_takes_the_place_of_the_first(bundle: str) -> None:
    first, second = load_module(bundle, "twice"), load_module(bundle, "twice")

    assert sys.modules["function_twice"] is second
    assert first.__name__ not in sys.modules
    assert first.Filter is not second.Filter
    evict(second)
    assert "function_twice" not in sys.modules


@pytest.fixture(scope="module")
def file(bundle: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle away from the checkout."""
    path = tmp_path_factory.mktemp("bundle") / "function.py"
    path.write_text(bundle, encoding="utf-8")
    return path


def test_it_loads_with_what_open_webui_ships_and_does_nothing(slim_python: str, file: Path) -> None:
    """Twice in one process, without a network, on each version of Python."""
    result = report(slim_python, file)

    assert result.pop("frontmatter")["title"] == "Eunoe"
    assert result.pop("python") in {"3.11", "3.12"}
    assert result == {"kind": "filter", "ours": [], "functions": 2, "seen": []}


def test_it_loads_here_without_what_is_optional(file: Path) -> None:
    absent = ["eunoe", "eunoe_hosts", *sorted(amalgamate.SOMETIMES_THERE)]

    result = report(sys.executable, file, *absent)

    assert (result["kind"], result["ours"], result["seen"]) == ("filter", [], [])


SIDE_EFFECTS = {
    "thread": "import threading\nthreading.Thread(target=lambda: threading.Event().wait(9), daemon=True).start()\n",
    "socket": "import socket\nsocket.socket().close()\n",
    "open": "open('/dev/null', 'a').close()\n",
    "subprocess.Popen": "import subprocess\nsubprocess.run(['true'])\n",
}


@pytest.mark.parametrize("effect", SIDE_EFFECTS)
def test_the_report_sees_what_a_load_does(tmp_path: Path, effect: str) -> None:
    """Else the empty lists above would prove nothing."""
    path = tmp_path / "function.py"
    path.write_text(SIDE_EFFECTS[effect] + "class Filter: ...\n", encoding="utf-8")

    assert [line for line in report(sys.executable, path)["seen"] if line.startswith(effect)]


def test_the_report_has_no_network(tmp_path: Path) -> None:
    path = tmp_path / "function.py"
    path.write_text(
        "import socket\n\n\nclass Filter:\n    peer = socket.create_connection(('localhost', 9))\n"
    )

    with pytest.raises(AssertionError, match="this process has no network"):
        report(sys.executable, path)
