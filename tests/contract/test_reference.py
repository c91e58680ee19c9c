"""The docs say what the code does."""

import re
from pathlib import Path

import pytest

import reference
from eunoe.errors import BadSetting
from eunoe.flags import FLAGS
from eunoe.settings import Settings, environment_name, settings_from

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_pages_are_what_the_code_says():
    stale = [p.name for p, text in reference.pages(ROOT).items() if p.read_text(encoding="utf-8") != text]
    assert stale == []


def test_every_setting_and_flag_is_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in readme for name in Settings.model_fields)
    assert all(re.search(rf"\| `!{name}[=`]", readme) for name in FLAGS)


def test_settings_are_read_from_the_environment():
    given = {
        "EUNOE_MAX_TOKENS": "900",
        "EUNOE_SHOW_STATUS": "false",
        "EUNOE_WEIGHTING": "static",
        "PATH": "/bin",
    }
    assert settings_from(given) == Settings(max_tokens=900, show_status=False, weighting="static")
    assert settings_from({}) == Settings()


def test_a_bad_variable_is_named_with_its_default():
    with pytest.raises(BadSetting, match=r"EUNOE_MAX_TOKENS: .*The default is 16000"):
        settings_from({environment_name("max_tokens"): "many"})
