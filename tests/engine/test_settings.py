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
            "max_cost_usd": 0.0,
            "reply_reserve": 2048,
            "algorithm": "recency_biased",
            "recency_factor": 1.5,
            "weighting": "smart",
            "tool_penalty": 0.5,
            "embedding_api_base": "",
            "embedding_api_key": "",
            "embedding_model": "",
            "llm_analysis": False,
            "llm_analysis_weight": 0.6,
            "use_entry_logic": False,
            "summary_model": "",
            "summary_api_base": "",
            "summary_api_key": "",
            "summary_extra_body": "{}",
            "summary_window": 8192,
            "summary_level": "conversation",
            "summary_target_ratio": 0.3,
            "pair_coherence": 0.8,
            "retry_attempts": 3,
            "cache_backend": "memory",
            "redis_url": "redis://redis:6379/0",
            "nosum_by_default": False,
            "compress_over_tokens": 4000,
            "cache_hints": "auto",
            "show_status": True,
            "observer_url": "",
            "observer_token": "",
            "observer_public_url": "",
            "observer_content": "preview",
            "observer_log_level": "DEBUG",
            "openrouter_pricing": False,
            "pricing_cache_ttl_hours": 24.0,
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


def test_only_secrets_are_masked_where_settings_are_shown():
    properties = Settings.model_json_schema()["properties"]
    masked = [name for name, shown in properties.items() if "input" in shown]
    assert masked == ["embedding_api_key", "summary_api_key", "observer_token"]
    assert all(properties[name]["input"] == {"type": "password"} for name in masked)


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
        "algorithm": "prefix_cache_optimized", "recency_factor": 0.25, "weighting": "keyword", "tool_penalty": 0.75,
        "pair_coherence": 0.5, "nosum_by_default": True, "show_status": False, "observer_url": "http://localhost:7456",
        "observer_token": "secret", "observer_public_url": "https://eunoe.example.org", "observer_content": "none",
        "observer_log_level": "INFO", "store_path": "/var/lib/eunoe.sqlite3",
        "pricing_config_path": "/etc/prices.json", "model_aliases": '{"a": "b"}', "max_cost_usd": 0.02,
        "embedding_api_base": "http://localhost:11434/v1", "embedding_api_key": "k", "embedding_model": "e",
        "llm_analysis": True, "llm_analysis_weight": 0.25, "use_entry_logic": True, "summary_model": "auto",
        "summary_api_base": "http://localhost:8080/v1", "summary_api_key": "s", "summary_extra_body": '{"seed": 1}',
        "summary_window": 4096, "summary_level": "segment", "summary_target_ratio": 0.5, "retry_attempts": 2,
        "cache_backend": "sqlite", "redis_url": "redis://localhost:6379/1", "openrouter_pricing": True,
        "pricing_cache_ttl_hours": 6.0, "compress_over_tokens": 0, "cache_hints": "off",
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
                "EUNOE_ALGORITHM: Input should be 'recency_biased', 'greedy_by_weight', 'dependency_aware' or "
                "'prefix_cache_optimized'. The default is recency_biased."
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
        {"observer_log_level": "debug"}, {"max_cost_usd": -0.01}, {"llm_analysis_weight": 1.1},
        {"summary_window": 100}, {"summary_level": "book"}, {"summary_target_ratio": 0}, {"retry_attempts": 0},
        {"cache_backend": "disk"}, {"summary_extra_body": "[]"}, {"summary_extra_body": "{"},
        {"pricing_cache_ttl_hours": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Settings(**bad)


def test_fields_of_other_versions_are_ignored():
    assert Settings.model_validate({"max_tokens": 5, "max_turns": "gone"}) == Settings(max_tokens=5)


def test_an_empty_variable_means_the_default():
    assert settings_from({"EUNOE_MAX_TOKENS": "", "EUNOE_OBSERVER_URL": ""}) == Settings()
