"""The Open WebUI host as the package has it and as people paste it."""

from pathlib import Path

import pytest

import eunoe_hosts.open_webui
from tests.bundle.loader import load_module

BUNDLE = Path(__file__).resolve().parents[2] / "filter" / "eunoe_filter.py"


@pytest.fixture(params=["package", "bundle"])
def host(request):
    """The module that holds `Filter`."""
    if request.param == "package":
        return eunoe_hosts.open_webui
    return load_module(BUNDLE.read_text(encoding="utf-8"))
