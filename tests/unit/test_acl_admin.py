"""Command lines of `mqadmin` on access control: the account that signs, and the account that is changed."""

from __future__ import annotations

import pytest

from ariane.cli.mqadmin.commands.acl_commands import COMMANDS
from ariane.cli.mqadmin.option_parser import create_parser
from ariane.errors import UsageError

BY_NAME = {command.name: command for command in COMMANDS}


def test_keys_of_an_account_are_not_those_that_sign() -> None:
    parser = create_parser(BY_NAME["updateAclConfig"], "Do it.", "mqadmin")
    options = parser.parse_args(["-b", "h:1", "--accessKey", "account", "--secretKey", "secret"])
    assert (options.accessKey, options.secretKey) == ("account", "secret")
    assert (options.sign_accessKey, options.sign_secretKey) == (None, None)


def test_other_commands_sign_with_these_options() -> None:
    parser = create_parser(BY_NAME["getAclConfig"], "Do it.", "mqadmin")
    options = parser.parse_args(["-b", "h:1", "--accessKey", "operator", "--secretKey", "secret"])
    assert (options.sign_accessKey, options.sign_secretKey) == ("operator", "secret")


def test_a_broker_and_a_cluster_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="not both"):
        create_parser(BY_NAME["getAclConfig"], "Do it.", "mqadmin").parse_args(["-b", "h:1", "-c", "C"])
