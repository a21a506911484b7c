"""Requests to name servers: headers and bodies of 100–106, 205, 206, 216, 219, 224, 304, 311–313, 318, 319, 322, 327.

The members of body Structs are in the order in which Java prints them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ariane.model.topic import DataVersion, TopicConfig, TopicDeletion

MASTER_ID = 0  # broker id of a master; slaves have higher ones


class KvKey(msgspec.Struct, frozen=True):
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class PutKv(msgspec.Struct, frozen=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class KvValue(msgspec.Struct, frozen=True):
    """Response to GET_KV_CONFIG."""

    value: str | None = None


class KvNamespace(msgspec.Struct, frozen=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class KvTableBody(msgspec.Struct, frozen=True):
    """Body of 219, of 28, and of the response to REGISTER_BROKER."""

    table: dict[str, str] = {}


class RegisterBroker(
    msgspec.Struct,
    frozen=True,
    rename={
        "broker_name": "brokerName",
        "broker_addr": "brokerAddr",
        "cluster_name": "clusterName",
        "broker_id": "brokerId",
        "ha_server_addr": "haServerAddr",
        "body_crc32": "bodyCrc32",
        "epoch": "brokerEpoch",
    },
):
    """REGISTER_BROKER (103). A `body_crc32` of 0 was not computed."""

    broker_name: str  # shared by a master and its slaves
    broker_addr: str  # for clients, ip:port
    cluster_name: str  # of all servers of the broker name
    ha_server_addr: str  # of a master, where its slaves replicate from
    broker_id: int  # 0 is the master
    compressed: bool = False  # the body is compressed, as from brokers with compressedRegister
    body_crc32: int = 0
    epoch: int | None = None  # of Ariane, with failover: that of the broker set. Java's name servers ignore it


class RegisterBrokerResponse(msgspec.Struct, frozen=True, rename="camel"):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class BrokerRef(msgspec.Struct, frozen=True, rename="camel"):
    """UNREGISTER_BROKER (104), QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class TopicTable(msgspec.Struct, frozen=True, rename="camel"):
    """TopicConfigSerializeWrapper: in REGISTER_BROKER and response to GET_ALL_TOPIC_CONFIG (21)."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class MasterTopicTable(TopicTable, frozen=True, rename="camel"):
    """Response to GET_ALL_TOPIC_CONFIG (21). Slaves of ours skip the records of deleted topics; Java ignores the member."""

    deleted_topics: dict[str, TopicDeletion] | None = None


class TopicPageRequest(msgspec.Struct, frozen=True, rename="camel"):
    """GET_ALL_TOPIC_CONFIG (21) of our slaves: a page of the table, unless the slave has its version. Java sends no fields."""

    page_offset: Annotated[int, msgspec.Meta(ge=0)] | None = None
    known_counter: int = -1
    known_timestamp: int = -1


class TopicPage(msgspec.Struct, frozen=True, rename="camel"):
    """Header of the response to 21; without `next_offset` the table is complete."""

    next_offset: int | None = None


class RegisterBrokerBody(msgspec.Struct, frozen=True, rename="camel"):
    filter_server_list: tuple[str, ...] = ()
    topic_config_serialize_wrapper: TopicTable = TopicTable()


class RouteRequest(msgspec.Struct, frozen=True, rename="camel"):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool = False


class BrokerData(msgspec.Struct, frozen=True, rename="camel"):
    """A broker in a route: its servers by broker id."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str = ""

    @property
    def master(self) -> str | None:
        """Address of the master, or None if no master is registered."""
        return self.broker_addrs.get(MASTER_ID)


class QueueData(msgspec.Struct, frozen=True, rename="camel", gc=False):
    broker_name: str
    perm: int
    read_queue_nums: int
    topic_sys_flag: int
    write_queue_nums: int


class TopicRoute(msgspec.Struct, frozen=True, rename="camel"):
    """TopicRouteData: body of the answer to 105."""

    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: dict[str, tuple[str, ...]] = {}
    order_topic_conf: str | None = None
    queue_datas: tuple[QueueData, ...] = ()


class ClusterInfo(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the response to GET_BROKER_CLUSTER_INFO (106)."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, tuple[str, ...]] = {}


class BrokerName(msgspec.Struct, frozen=True, rename="camel"):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class ChangedTopics(msgspec.Struct, frozen=True, rename="camel"):
    """Response to 205 or 327: the number of topics whose permission changed; each code has a field of its own."""

    wipe_topic_count: int = 0
    add_topic_count: int = 0


class TopicList(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the responses to 206, 224, 304, 311–313."""

    broker_addr: str | None = None
    topic_list: tuple[str, ...] = ()


class DeleteTopicRoute(msgspec.Struct, frozen=True, rename="camel"):
    """DELETE_TOPIC_IN_NAMESRV (216)."""

    topic: str
    cluster_name: str | None = None


class ClusterRef(msgspec.Struct, frozen=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str
