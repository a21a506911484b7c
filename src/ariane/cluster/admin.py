"""`Admin`: all operations on a cluster in one class. `mqadmin`, `ariane topic …` and the console use it.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=8)

Each area has a module; reads return values, changes return what was changed (`Change`).
"""

from __future__ import annotations

from ariane.cluster.cluster_export import ExportOperations
from ariane.cluster.diagnosis.cluster_snapshot import DiagnosisOperations
from ariane.cluster.groups.group_rates import GroupRateOperations
from ariane.cluster.groups.in_flight_messages import InFlightOperations
from ariane.cluster.groups.topic_traffic import TrafficOperations
from ariane.cluster.messages.delayed_messages import DelayedOperations
from ariane.cluster.messages.message_search import MessageSearchOperations
from ariane.cluster.messages.message_tracking import MessageTrackOperations
from ariane.cluster.messages.transaction_admin import TransactionOperations
from ariane.cluster.queue_moves import QueueMoveOperations
from ariane.cluster.rolling_restart import RestartOperations
from ariane.cluster.servers.acl_admin import AclOperations
from ariane.cluster.servers.audit_records import AuditOperations
from ariane.cluster.servers.lossy_promotion import LossyPromotionOperations
from ariane.cluster.servers.user_admin import UserOperations


class Admin(
    QueueMoveOperations,
    RestartOperations,
    TrafficOperations,
    GroupRateOperations,
    InFlightOperations,
    ExportOperations,
    MessageTrackOperations,
    DiagnosisOperations,
    LossyPromotionOperations,
    AclOperations,
    AuditOperations,
    UserOperations,
    MessageSearchOperations,
    DelayedOperations,
    TransactionOperations,
):
    """Operator's view of a cluster of Ariane or Apache RocketMQ. Arguments: `ClusterConnection`."""
