"""The bundle keeps the text of its sources, in an order that runs, and knows where each line comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .loader import load
from .repository import HOST, Repository

LOCATING_HOST = '''\
"""The host."""

from __future__ import annotations

import bisect
import traceback

from eunoe.plan import plan


class Filter:
    def inlet(self, body: str) -> str:
        """Give the body to the engine."""
        if body == "eunoe_hosts/open_webui.py":
            raise ValueError(body)
        return plan(body)


def locate(error: BaseException) -> list[str]:
    """Name the source lines behind a traceback of this bundle."""
    starts = [start for start, _, _ in _SECTIONS]
    places = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals is globals() and line >= starts[0]:
            start, path, source = _SECTIONS[bisect.bisect_right(starts, line) - 1]
            places.append(f"{path}:{line - start + source} in {frame.f_code.co_name}")
    return places
'''


def section(text: str, label: str) -> str:
    """Cut a section's text out of a bundle."""
    after = re.split(rf"^# ──── {re.escape(label)} ─+\n\n", text, flags=re.MULTILINE)[1]
    return re.split(r"\n\n\n# ──── |\n\n\n# Where each source", after)[0] + "\n"


def sections(text: str) -> list[str]:
    """List the sections of a bundle, in order."""
    return re.findall(r"^# ──── (\S+) ─+$", text, flags=re.MULTILINE)


def imports(text: str) -> str:
    """Cut the import block out of a bundle."""
    return text.partition("from __future__ import annotations\n")[2].partition("\n\n\n# ──── ")[0].strip()


def test_a_diamond_is_written_once_and_from_the_bottom_up(repository: Repository) -> None:
    repository.engine(
        plan="from .left import Left\nfrom .right import Right\n\n\ndef plan(body):\n    return Left(), Right()\n",
        left="from .base import Base\n\n\nclass Left(Base): ...\n",
        right="from .base import Base\n\n\nclass Right(Base): ...\n",
        base="class Base: ...\n",
        unneeded="class Unneeded: ...\n",
    )

    text = repository.build()

    assert sections(text) == [
        "eunoe/base.py",
        "eunoe/left.py",
        "eunoe/right.py",
        "eunoe/plan.py",
        "eunoe_hosts/open_webui.py",
    ]
    left, right = load(text).instance.inlet({})
    assert type(left).__base__ is type(right).__base__


def test_modules_of_inner_packages_find_those_around_them(repository: Repository) -> None:
    repository.engine(
        plan="from .deep.well import depth\n\n\ndef plan(body):\n    return depth(body)\n",
        water="WATER = 7\n",
    )
    repository.write("shared/eunoe/deep/__init__.py", "from .well import depth\n")
    repository.write("shared/eunoe/deep/rope.py", "ROPE = 6\n")
    repository.write(
        "shared/eunoe/deep/well.py",
        "from ..water import WATER\nfrom .rope import ROPE\n\n\ndef depth(body):\n    return WATER * ROPE\n",
    )

    text = repository.build()

    assert sections(text)[-3:] == ["eunoe/deep/well.py", "eunoe/plan.py", "eunoe_hosts/open_webui.py"]
    assert load(text).instance.inlet({}) == 42


def test_the_same_sources_give_the_same_bytes(repository: Repository, tmp_path: Path) -> None:
    copy = Repository(tmp_path / "copy")

    assert repository.build() == repository.build() == copy.build()


def test_the_digest_tells_sources_apart(repository: Repository) -> None:
    digest = re.compile(r"^# [0-9a-f]{64}\.$", re.MULTILINE)
    before = digest.findall(repository.build())
    repository.host(HOST.replace('"""The host."""', '"""A host."""'))  # a text that is not in the bundle

    after = digest.findall(repository.build())

    assert len(before) == len(after) == 1
    assert before != after


TEXT = '''\
# A remark for the whole file, not for the statement below it.

"""What the module is for; it is left out."""

# A remark on an import goes with it.
from __future__ import annotations

import re  # so does this one
from dataclasses import (
    dataclass,  # and this
    field,
)

from .other import other

# Words of any script: 言葉, слова, λέξεις.
WORD = re.compile(r"\\w+")  # a remark behind a constant
"""What a word is."""

TEXT = """
# no remark, a text \N{EN SPACE}
from .other import other

\x0c
"""


@dataclass(
    frozen=True,
)
@other
class Word:

    text: str = "“Grüße” 🙂"


    parts: list[str] = field(  # oddly laid out
        default_factory = list)


# ── A heading of its own ──


async def plan(
    body: str, *,
    deep: bool = False,
) -> str:
    """Keep \\
    lines."""
    # A remark inside.
    return (body
            + "")

    # A remark at the end of a function.
# A last remark.
'''


def test_the_text_survives(repository: Repository) -> None:
    repository.engine(other="def other(kind):\n    return kind\n", plan=TEXT)

    text = section(repository.build(), "eunoe/plan.py")

    head, _, rest = TEXT.partition('\n"""What the module')
    assert text == head + "\n" + rest[rest.index("# Words of any script") :]


def test_what_falls_out_in_the_middle_leaves_no_more_than_the_lines_around_it(repository: Repository) -> None:
    repository.engine(
        other='import logging\n\nlogger = logging.getLogger("eunoe")\n\n\ndef other(): ...\n',
        plan="""\
import logging

from .other import other

A = 1

# The one logger of all modules.
logger = logging.getLogger("eunoe")

__all__ = [
    "plan",
]

B = 2


def plan(body):
    return A + B
""",
    )

    text = repository.build()

    assert section(text, "eunoe/plan.py") == "A = 1\n\nB = 2\n\n\ndef plan(body):\n    return A + B\n"
    assert text.count("logging.getLogger") == 1
    assert re.search(r'\(\d+, "eunoe/plan.py", 5\),\n    \(\d+, "eunoe/plan.py", 14\),', text)


def test_blank_lines_stay_where_only_one_side_of_what_falls_out_has_them(repository: Repository) -> None:
    repository.engine(plan='A = """\n# no remark"""\n__all__ = ["plan"]\n\n\ndef plan(body):\n    return A\n')

    text = repository.build()

    assert section(text, "eunoe/plan.py") == 'A = """\n# no remark"""\n\n\ndef plan(body):\n    return A\n'


def test_equal_texts_below_names_and_lists_of_exports_are_no_collision(repository: Repository) -> None:
    described = '"""How much."""\n\n__all__ = ["{}"]\n'
    repository.engine(
        plan="from .other import MORE\n\nMOST = MORE\n"
        + described.format("MOST")
        + "\n\ndef plan(body): ...\n",
        other="MORE = 1\n" + described.format("MORE"),
    )

    text = repository.build()

    assert section(text, "eunoe/other.py") == 'MORE = 1\n"""How much."""\n'
    assert section(text, "eunoe/plan.py").startswith('MOST = MORE\n"""How much."""\n')


def test_imports_are_merged_and_optional_ones_keep_their_text(repository: Repository) -> None:
    optional = """\
# The slim form of Open WebUI has none.
try:
    import structlog  # at least 24
except ImportError:  # as in Open WebUI
    structlog = None  # type: ignore[assignment]
"""
    repository.engine(
        other=f"import os\nimport re\nimport os.path\nfrom typing import Any\n\n{optional}\n\ndef other(): ...\n",
        plan=(
            "import re\nimport numpy as np\nfrom typing import TYPE_CHECKING, Protocol as Port, Any\n\n"
            f"from .other import other\n\n{optional.partition(chr(10))[2]}\n\ndef plan(body): ...\n"
        ),
    )

    assert imports(repository.build()) == (
        "import numpy as np\nimport os\nimport os.path\nimport re\n"
        "from typing import Any, Protocol as Port, TYPE_CHECKING\n\n" + optional.rstrip()
    )


def test_a_section_without_lines_is_left_out(repository: Repository) -> None:
    repository.engine(
        plan="from .middle import LIMIT\n\n\ndef plan(body):\n    return LIMIT\n",
        middle="from .base import base\n\nLIMIT = 1\n",
        base="LIMIT = 1\n\n\ndef base(): ...\n",
    )

    text = repository.build()

    assert sections(text) == ["eunoe/base.py", "eunoe/plan.py", "eunoe_hosts/open_webui.py"]
    assert load(text).instance.inlet({}) == 1


@pytest.mark.parametrize(
    "label", ["eunoe/base.py", "eunoe/other.py", "eunoe/plan.py", "eunoe_hosts/open_webui.py"]
)
def test_an_error_in_any_section_is_reported_at_its_true_line(repository: Repository, label: str) -> None:
    fail = '\n\n    if body == "{}":\n        raise ValueError(body)\n    return {}\n'
    repository.engine(
        base='"""Base."""\n\nimport json\n\nC = 1\n\n\ndef base(body):'
        + fail.format("eunoe/base.py", "body"),
        other=(
            '"""Other."""\n\nimport re\n\nfrom .base import base\n\nD = 2\n\nC = 1\n\n__all__ = ["other"]\n\n'
            "# The rest.\n\n\ndef other(body):" + fail.format("eunoe/other.py", "base(body)")
        ),
        plan="from .other import other\n\n\ndef plan(body):" + fail.format("eunoe/plan.py", "other(body)"),
    )
    repository.host(LOCATING_HOST)
    loaded = load(repository.build())

    with pytest.raises(ValueError, match=label) as raised:
        loaded.instance.inlet(label)

    places = loaded.module.locate(raised.value)
    path, line = places[-1].split(" in ")[0].split(":")
    folder = "shared" if label.startswith("eunoe/") else "filter"
    source = (repository.root / folder / path).read_text(encoding="utf-8").splitlines()
    assert path == label
    assert source[int(line) - 1].strip() == "raise ValueError(body)"
    assert (
        len(places)
        == ["eunoe_hosts/open_webui.py", "eunoe/plan.py", "eunoe/other.py", "eunoe/base.py"].index(label) + 1
    )


def test_what_a_bundle_may_not_have_is_refused_in_the_bundle_itself(repository: Repository) -> None:
    project = repository.root / "pyproject.toml"
    project.write_text(project.read_text().replace("Keeps chats short.", "Keeps text from main chats."))

    assert repository.breaches() == [
        'filter/eunoe_filter.py:6: Open WebUI rewrites "from main", even within a text'
    ]
