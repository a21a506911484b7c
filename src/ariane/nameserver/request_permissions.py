"""What each request to a name server with access control needs. Java's name servers serve all of them to anyone.

registrations   the broker's name in `brokers` of the account, so that no other server takes its messages
changes         an admin
settings        an account
reads           nothing, as Java's clients without credentials read routes; an account with aclReadEnable
"""

from __future__ import annotations

from ariane.access.request_needs import Fields, Permission, RequestNeeds, RequiredPermission
from ariane.protocol.codes import RequestCode


def _broker(fields: Fields, body: bytes) -> list[RequiredPermission]:
    return [RequiredPermission(fields.get("brokerName", ""), Permission.REGISTER)]


_READ = RequestNeeds("nothing; account with aclReadEnable")
_ACCOUNT = RequestNeeds("account")
_ADMIN = RequestNeeds("admin", is_admin=True)
_REGISTER = RequestNeeds("the broker in `brokers`", _broker)

REQUEST_NEEDS: dict[int, RequestNeeds] = {
    # Brokers
    RequestCode.REGISTER_BROKER: _REGISTER,
    RequestCode.UNREGISTER_BROKER: _REGISTER,
    RequestCode.QUERY_DATA_VERSION: _REGISTER,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _ADMIN,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _ADMIN,
    # Routes and topics
    RequestCode.GET_ROUTEINFO_BY_TOPIC: _READ,
    RequestCode.GET_BROKER_CLUSTER_INFO: _READ,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _READ,
    RequestCode.GET_TOPICS_BY_CLUSTER: _READ,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: _READ,
    RequestCode.GET_UNIT_TOPIC_LIST: _READ,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: _READ,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _READ,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _ADMIN,
    # KV table
    RequestCode.GET_KV_CONFIG: _READ,
    RequestCode.GET_KVLIST_BY_NAMESPACE: _READ,
    RequestCode.PUT_KV_CONFIG: _ADMIN,
    RequestCode.DELETE_KV_CONFIG: _ADMIN,
    # Settings
    RequestCode.GET_NAMESRV_CONFIG: _ACCOUNT,
    RequestCode.UPDATE_NAMESRV_CONFIG: _ADMIN,
    RequestCode.GET_AUDIT_LOG: _ADMIN,
}
READS = frozenset(code for code, needs in REQUEST_NEEDS.items() if needs is _READ)
