"""docs/configuration.md lists every key of broker.conf, namesrv.conf and proxy.conf as the code defines it.

To rewrite the page after a change: `python tests/style/test_configuration_page.py`.
"""

from __future__ import annotations

from pathlib import Path

from ariane.broker.config.broker_config import BROKER_SETTINGS
from ariane.nameserver.config import NAME_SERVER_SETTINGS
from ariane.proxy.cluster.proxy_config import PROXY_SETTINGS
from ariane.settings.reference import configuration_page, descriptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
SCHEMAS = (BROKER_SETTINGS, NAME_SERVER_SETTINGS, PROXY_SETTINGS)


def test_the_page_is_generated_from_the_definitions() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_page(SCHEMAS), f"run: python {Path(__file__).name}"


def test_every_setting_is_described() -> None:
    for schema in SCHEMAS:
        assert {setting.name for setting in schema.settings.values()} <= descriptions(schema.kind).keys()


if __name__ == "__main__":
    PAGE.write_text(configuration_page(SCHEMAS), encoding="utf-8")
