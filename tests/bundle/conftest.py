"""What the tests of the bundle share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import amalgamate
import environments

from .repository import Repository

# What Open WebUI 0.12.4 installs in its slim form of the packages that a bundle may import.
SLIM = ["aiosqlite==0.22.1", "httpx==0.28.1", "numpy==2.4.6", "orjson==3.11.9", "pydantic==2.13.4",
        "redis==8.0.1", "tiktoken==0.13.0"]  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A small repository that can be bundled."""
    return Repository(tmp_path / "repository")


@pytest.fixture(scope="session")
def bundle() -> str:
    """The committed bundle."""
    return (amalgamate.ROOT / amalgamate.BUNDLE).read_bytes().decode()


@pytest.fixture(scope="session", params=environments.VERSIONS)
def slim_python(request: pytest.FixtureRequest) -> str:
    """An interpreter that has the packages of Open WebUI's slim form and nothing of ours."""
    version = request.param
    recipe = environments.Recipe(
        title=f"Python {version} with what Open WebUI ships",
        folder=environments.cache_folder() / f"slim-py{version}",
        key=" ".join(SLIM),
        install=lambda steps: steps.pip("installing", "install", *SLIM),
    )
    try:
        return str(environments.make(recipe, environments.interpreter(version)) / "bin" / "python")
    except environments.PreparationError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no Python {version} to load the bundle in: {error}")
        pytest.skip(f"no Python {version} to load the bundle in: {error}")
