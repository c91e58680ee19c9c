"""What a call costs."""

import json
import os

import pytest

from eunoe.errors import BadSetting
from eunoe.listing import listed_price
from eunoe.pricing import (
    Price,
    cost_of,
    cost_source,
    find_price,
    prompt_cost,
    read_aliases,
    read_price_file,
    with_cost,
)
from eunoe.usage import Usage

SONNET = Price(3.0, 0.3, 3.75, 15.0, "price file")


def test_cached_and_written_tokens_have_their_own_price():
    usage = Usage(prompt_tokens=10_500, completion_tokens=200, cached_tokens=9_000, cache_write_tokens=1_000)
    assert cost_of(usage, SONNET) == pytest.approx((500 * 3 + 9_000 * 0.3 + 1_000 * 3.75 + 200 * 15) / 1e6)


def test_without_their_own_price_they_cost_what_input_costs():
    usage = Usage(prompt_tokens=1000, completion_tokens=0, cached_tokens=400, cache_write_tokens=100)
    assert cost_of(usage, Price(2.0)) == pytest.approx(0.002)


def test_what_is_not_known_has_no_cost():
    full = Usage(prompt_tokens=10, completion_tokens=1)
    assert cost_of(full, None) is None
    assert cost_of(full, Price(2.0)) is None, "the reply's price is not known"
    assert cost_of(Usage(prompt_tokens=10), SONNET) is None
    assert cost_of(Usage(completion_tokens=10), SONNET) is None
    assert prompt_cost(10, None) is None
    assert prompt_cost(1_000_000, SONNET) == 3.0


def test_a_free_model_costs_nothing_and_that_is_known():
    assert cost_of(Usage(10, 5), Price(0.0, output=0.0)) == 0.0


def test_what_the_provider_reports_wins_and_the_source_says_so():
    reported, computed = Usage(10, 5, cost_usd=0.5), Usage(1_000_000, 0)
    assert with_cost(reported, SONNET) is reported
    assert with_cost(computed, SONNET).cost_usd == 3.0
    assert cost_source([reported], SONNET) == "provider"
    assert cost_source([computed], SONNET) == "price file"
    assert cost_source([reported, computed], SONNET) == "provider and price file"


@pytest.mark.parametrize(
    "model",
    ["gpt-4.1-mini", "openai/gpt-4.1-mini", "router/openai/gpt-4.1-mini", "gpt-4.1-mini-2025-04-14", "GPT-4.1-Mini",
     "openai/gpt-4.1-mini-20250414", "my.mini"],
)  # fmt: skip
def test_a_model_is_found_under_the_names_it_goes_by(model):
    prices = {"gpt-4.1-mini": Price(0.4), "gpt-4.1": Price(2.0)}
    assert find_price(prices, model, {"my.mini": "gpt-4.1-mini"}) == Price(0.4)


@pytest.mark.parametrize(
    "model", ["gpt-4.1-nano", "gpt-4.1-mini:free", "mini", "4.1-mini", "llama3.1:8b", "", "gpt"]
)
def test_a_like_name_is_not_the_same_name(model):
    assert find_price({"gpt-4.1-mini": Price(0.4), "1:8b": Price(1.0)}, model, {}) is None


def write(path, rows):
    path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


def test_a_price_file_is_read_and_read_again_when_it_changes(tmp_path):
    row = {
        "model_id": "Org/M",
        "input_price_per_1m": 3,
        "cached_price_per_1m": 0.3,
        "output_price_per_1m": 15,
    }
    path = write(tmp_path / "prices.json", [row, {"model_id": "free", "input_price_per_1m": None}])
    assert read_price_file(path) == {"org/m": Price(3.0, 0.3, None, 15.0, "price file")}
    assert read_price_file(path) is read_price_file(path)
    write(tmp_path / "prices.json", [row | {"input_price_per_1m": 44}])
    os.utime(path, ns=(1, 1))
    assert read_price_file(path)["org/m"].input == 44.0


@pytest.mark.parametrize("rows", [{"a": 1}, [1], [{"no": "id"}], "text", None])
def test_a_file_that_is_no_price_list_is_named_with_the_fix(tmp_path, rows):
    with pytest.raises(BadSetting, match=r"pricing_config_path: .*is no price list\. Write a list like"):
        read_price_file(write(tmp_path / "prices.json", rows))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadSetting, match=r"pricing_config_path: .*can't be read"):
        read_price_file(str(tmp_path / "none.json"))


@pytest.mark.parametrize("text", ["[]", "x", '{"a": 1}', "{"])
def test_aliases_that_are_no_map_are_named_with_the_fix(text):
    with pytest.raises(BadSetting, match=r"model_aliases: .*Write it like"):
        read_aliases(text)


def test_aliases_are_a_map_and_empty_by_default():
    assert read_aliases('{"a": "b"}') == {"a": "b"}
    assert read_aliases("") == read_aliases("{}") == {}


def test_a_price_in_the_model_list_is_for_one_token():
    entry = {"pricing": {"prompt": "0.000003", "completion": "0.000015", "input_cache_read": "0.0000003"}}
    price = listed_price(entry)
    assert (price.input, price.cached, price.cache_write, price.output) == pytest.approx(
        (3.0, 0.3, None, 15.0)
    )
    assert price.source == "model list"
    for none in (
        {},
        {"pricing": None},
        {"pricing": {"prompt": "-1", "completion": "-1"}},
        {"pricing": {"prompt": "x"}},
    ):
        assert listed_price(none) is None
