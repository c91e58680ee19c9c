"""The settings, declared once."""

import typing

import pytest
from inline_snapshot import snapshot

from eunoe.errors import BadSetting
from eunoe.settings import Settings, environment_name, settings_from


def test_the_defaults_are_these():
    assert Settings().model_dump() == snapshot(
        {
            "priority": 100,
            "max_tokens": 16000,
            "model_budgets": "{}",
            "context_window": 0,
            "reply_reserve": 2048,
            "algorithm": "recency_biased",
            "recency_factor": 1.5,
            "weighting": "smart",
            "tool_penalty": 0.5,
            "pair_coherence": 0.8,
            "nosum_by_default": False,
            "show_status": True,
            "observer_url": "",
            "observer_token": "",
            "observer_public_url": "",
            "observer_content": "preview",
            "observer_log_level": "DEBUG",
            "store_path": "",
            "pricing_config_path": "",
            "model_aliases": "{}",
        }
    )


def test_every_setting_says_what_it_is_and_what_it_does():
    for name, field in Settings.model_fields.items():
        assert field.title, name
        assert not field.title.endswith("."), name
        assert len(field.description) > 20, name
        assert field.description.endswith("."), name


def test_every_choice_is_explained():
    for field in Settings.model_fields.values():
        for choice in typing.get_args(field.annotation):
            assert f"`{choice}`" in field.description


def test_only_the_token_is_masked_where_settings_are_shown():
    masked = [name for name, shown in Settings.model_json_schema()["properties"].items() if "input" in shown]
    assert masked == ["observer_token"]
    assert Settings.model_json_schema()["properties"]["observer_token"]["input"] == {"type": "password"}


def test_variables_are_named_after_their_settings():
    assert environment_name("max_tokens") == "EUNOE_MAX_TOKENS"
    assert environment_name("observer_url") == "EUNOE_OBSERVER_URL"


def test_without_variables_all_is_default():
    assert settings_from({}) == Settings()
    assert (
        settings_from({"PATH": "x", "MAX_TOKENS": "7", "eunoe_max_tokens": "7", "EUNOE_UNKNOWN": "7"})
        == Settings()
    )


def test_every_setting_can_be_set_by_its_variable():
    given = {
        "priority": 3, "max_tokens": 9000, "model_budgets": '{"m": 1}', "context_window": 32_768, "reply_reserve": 512,
        "algorithm": "dependency_aware", "recency_factor": 0.25, "weighting": "keyword", "tool_penalty": 0.75,
        "pair_coherence": 0.5, "nosum_by_default": True, "show_status": False, "observer_url": "http://localhost:7456",
        "observer_token": "secret", "observer_public_url": "https://eunoe.example.org", "observer_content": "none",
        "observer_log_level": "INFO", "store_path": "/var/lib/eunoe.sqlite3",
        "pricing_config_path": "/etc/prices.json", "model_aliases": '{"a": "b"}',
    }  # fmt: skip
    assert set(given) == set(Settings.model_fields)
    assert all(value != Settings.model_fields[name].default for name, value in given.items())
    environment = {environment_name(name): str(value) for name, value in given.items()}
    assert settings_from(environment).model_dump() == given


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "EUNOE_MAX_TOKENS",
            "many",
            snapshot(
                "EUNOE_MAX_TOKENS: Input should be a valid integer, unable to parse string as an integer. "
                "The default is 16000."
            ),
        ),
        (
            "EUNOE_MAX_TOKENS",
            "-1",
            snapshot("EUNOE_MAX_TOKENS: Input should be greater than or equal to 0. The default is 16000."),
        ),
        (
            "EUNOE_TOOL_PENALTY",
            "1.5",
            snapshot("EUNOE_TOOL_PENALTY: Input should be less than or equal to 1. The default is 0.5."),
        ),
        (
            "EUNOE_ALGORITHM",
            "best",
            snapshot(
                "EUNOE_ALGORITHM: Input should be 'recency_biased', 'greedy_by_weight' or 'dependency_aware'. "
                "The default is recency_biased."
            ),
        ),
        (
            "EUNOE_SHOW_STATUS",
            "perhaps",
            snapshot(
                "EUNOE_SHOW_STATUS: Input should be a valid boolean, unable to interpret input. The default is True."
            ),
        ),
    ],
)
def test_a_bad_value_names_the_variable_the_problem_and_the_default(name, value, message):
    with pytest.raises(BadSetting) as caught:
        settings_from({name: value, "EUNOE_OBSERVER_TOKEN": "secret"})
    assert str(caught.value) == message
    assert caught.value.field == name
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": -1}, {"context_window": -1}, {"reply_reserve": -1}, {"algorithm": "best"},
        {"recency_factor": -0.1},
        {"recency_factor": 101}, {"recency_factor": float("nan")}, {"weighting": ""}, {"tool_penalty": 1.1},
        {"tool_penalty": -0.1}, {"pair_coherence": 1.1}, {"pair_coherence": -0.1}, {"observer_content": "all"},
        {"observer_log_level": "debug"},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Settings(**bad)


def test_fields_of_other_versions_are_ignored():
    assert Settings.model_validate({"max_tokens": 5, "summary_model": "gone"}) == Settings(max_tokens=5)


def test_an_empty_variable_means_the_default():
    assert settings_from({"EUNOE_MAX_TOKENS": "", "EUNOE_OBSERVER_URL": ""}) == Settings()
