"""Names and summaries of all commands, and the module of each, without importing it.

A summary is one imperative sentence; the list of commands and the help show it.
"""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from ariane.cli.mqadmin.command import AdminCommand, CommandList


class RegisteredCommand(NamedTuple):
    """Where a command is, and what it does."""

    module: str
    summary: str


_MODULES: dict[str, dict[str, str]] = {
    "topic_commands": {
        "updateTopic": "Create a topic or change it.",
        "deleteTopic": "Delete a topic from brokers and name servers.",
        "updateTopicPerm": "Change the permission of a topic.",
        "topicRoute": "Print the brokers and queues of a topic.",
        "topicStatus": "Print the offsets of a topic's queues.",
        "topicClusterList": "List the clusters that have a topic.",
        "topicList": "List all topics.",
        "updateOrderConf": "Set, print or delete the queues of an ordered topic.",
        "allocateMQ": "Print which queues consumers would get.",
    },
    "traffic_commands": {
        "statsAll": "Print the traffic of topics and consumer groups.",
    },
    "queue_commands": {
        "queryCq": "Print entries of a consume queue.",
    },
    "broker_commands": {
        "updateBrokerConfig": "Change a setting of brokers.",
        "brokerStatus": "Print the runtime state of brokers.",
        "clusterList": "Print rates and disk usage of all servers.",
        "cleanExpiredCQ": "Delete consume-queue files without messages.",
        "deleteExpiredCommitLog": "Delete commit-log files beyond the retention time.",
        "cleanUnusedTopic": "Delete queues of topics that no longer exist.",
        "getBrokerConfig": "Print the settings of brokers.",
    },
    "namesrv_commands": {
        "updateKvConfig": "Set a value of the name servers' KV table.",
        "deleteKvConfig": "Delete a value from the name servers' KV table.",
        "wipeWritePerm": "Remove the write permission of a broker.",
        "addWritePerm": "Restore the write permission of a broker.",
        "getNamesrvConfig": "Print the settings of name servers.",
        "updateNamesrvConfig": "Change a setting of name servers.",
    },
    "message_query_commands": {
        "queryMsgById": "Print messages with these ids, or send them again.",
        "queryMsgByKey": "List the messages of a topic with a business key.",
        "queryMsgByUniqueKey": "Print the message of a topic with a unique key.",
        "queryMsgByOffset": "Print the message at an offset of a queue.",
        "queryMsgTraceById": "Print the trace of a message.",
    },
    "message_print_commands": {
        "printMsg": "Print the messages of a topic.",
        "printMsgByQueue": "Print the messages of a queue, or count their tags.",
        "consumeMessage": "Print the oldest messages of a topic or queue.",
    },
    "message_send_commands": {
        "sendMsgStatus": "Send messages to a broker and print the results.",
        "checkMsgSendRT": "Measure the response times of a topic's queues.",
        "clusterRT": "Measure the response times of all brokers.",
        "sendMessage": "Send a message.",
    },
    "group_commands": {
        "updateSubGroup": "Create a consumer group or change it.",
        "deleteSubGroup": "Delete a consumer group.",
        "setConsumeMode": "Let a group pull a topic or pop it.",
        "getConsumerConfig": "Print the configuration of a group.",
        "consumerConnection": "Print the clients of a consumer group.",
        "producerConnection": "Print the clients of a producer group.",
        "producer": "Print all producers of a broker.",
    },
    "progress_commands": {
        "brokerConsumeStats": "Print the lag of all groups on a broker.",
        "consumerProgress": "Print the lag of consumer groups.",
        "consumerStatus": "Print the state of the clients of a group.",
    },
    "offset_commands": {
        "cloneGroupOffset": "Copy the offsets of a group to another.",
        "resetOffsetByTime": "Move a group to a time.",
        "skipAccumulatedMessage": "Move a group to the end of its queues.",
    },
    "monitor_commands": {
        "startMonitoring": "Print the state of all consumer groups every minute.",
    },
    "acl_commands": {
        "updateAclConfig": "Create an account or change it.",
        "deleteAclConfig": "Delete an account.",
        "clusterAclConfigVersion": "Print the versions of files with accounts.",
        "updateGlobalWhiteAddr": "Set addresses that need no account.",
        "getAclConfig": "Print the accounts of brokers.",
    },
    "user_commands": {
        "createUser": "Create a user of ACL 2.0.",
        "updateUser": "Change the password, type or status of a user.",
        "deleteUser": "Delete a user with its policies.",
        "getUser": "Print a user.",
        "listUser": "List the users of brokers.",
        "copyUser": "Copy users from one broker to another.",
        "createAcl": "Add policies to a user.",
        "updateAcl": "Change or add policies of a user.",
        "deleteAcl": "Delete policies of a user.",
        "getAcl": "Print the policies of a user.",
        "listAcl": "List the policies of all users.",
        "copyAcl": "Copy policies from one broker to another.",
    },
    "export_commands": {
        "exportMetadata": "Write topics and groups into JSON files.",
        "exportConfigs": "Write settings of brokers into a JSON file.",
        "exportMetrics": "Write the load of brokers into a JSON file.",
    },
}

REGISTRY: dict[str, RegisteredCommand] = {
    name: RegisteredCommand(module, summary) for module, table in _MODULES.items() for name, summary in table.items()
}

# Other names of commands.
ALIASES = {"deleteAccessConfig": "deleteAclConfig", "getAccessConfigSubCommand": "getAclConfig"}


def find_name(name: str) -> str | None:
    """Return the registered name of a command, compared without regard to case as Java does; None if there is none."""
    names = {known.lower(): known for known in REGISTRY}
    names |= {alias.lower(): target for alias, target in ALIASES.items() if target in REGISTRY}
    return names.get(name.lower())


def load(name: str) -> AdminCommand:
    """Import the module of a registered command and return the command."""
    return next(command for command in _commands_of(REGISTRY[name].module) if command.name == name)


def load_all() -> list[AdminCommand]:
    """Import all modules and return all commands, in the order of the registry."""
    names = list(REGISTRY)
    commands = (command for module in _MODULES for command in _commands_of(module))
    return sorted(commands, key=lambda command: names.index(command.name))


def _commands_of(module: str) -> CommandList:
    commands: CommandList = import_module(f"ariane.cli.mqadmin.commands.{module}").COMMANDS
    return commands
