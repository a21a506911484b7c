"""Masks of secret keys: equal for equal keys of an account, and never taken for a key."""

from __future__ import annotations

import pytest

from ariane.access.acl import parse_acl_file
from ariane.bench.bench_plan import BenchMode, BenchPlan
from ariane.broker.config.broker_config import BrokerConfig
from ariane.errors import ConfigError, ProtocolError
from ariane.protocol.requests.rules import RULES
from ariane.protocol.secret_masks import HIDDEN, is_mask, mask_of


def test_masks_tell_keys_apart_and_are_equal_on_all_servers() -> None:
    masks = {mask_of("shop-account", f"secret-{number}") for number in range(50)}
    assert len(masks) > 40
    assert mask_of("shop-account", "secret-1") == mask_of("shop-account", "secret-1") in masks
    assert mask_of("shop-account", "secret-1") != mask_of("stock-account", "secret-1")


def test_a_mask_has_12_bits_of_the_key_and_stays_as_it_is() -> None:
    mask = mask_of("shop-account", "a-long-secret-key")
    assert len(mask) == len(HIDDEN) + 3
    assert is_mask(mask)
    assert mask_of("stock-account", mask) == mask
    assert mask_of("shop-account", "") == ""


@pytest.mark.parametrize("key", ["a-secret", "********-secret", "*******", "********3fag", "", None])
def test_keys_are_no_masks(key: str | None) -> None:
    assert not is_mask(key)


def test_a_file_with_a_mask_is_refused() -> None:
    account = {"accessKey": "shop-account", "secretKey": mask_of("shop-account", "a-secret")}
    with pytest.raises(ConfigError, match="is a mask"):
        parse_acl_file("plain_acl.yml", {"accounts": [account]})


def test_the_error_of_an_invalid_secret_key_does_not_show_it() -> None:
    with pytest.raises(ProtocolError) as error:
        RULES["secret_key"].check("secretKey", "planted" * 200)
    assert "planted" not in str(error.value)
    assert "at most 1024" in str(error.value)


def test_settings_and_plans_do_not_show_their_secrets() -> None:
    config = BrokerConfig(tls_server_key_password="planted-1", tls_client_key_password="planted-2", broker_name="b")
    plan = BenchPlan(mode=BenchMode.SEND, namesrv="", topic="T", group="G", run_id="1", secret_key="planted-3")
    shown = f"{config!r} {config} {config.server_tls()!r} {plan!r}"
    assert "planted" not in shown
    assert "brokerName=b" in shown
