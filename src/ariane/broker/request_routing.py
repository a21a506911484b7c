"""The request codes of the broker, their handlers, and the fast paths of some. [BrokerController.registerProcessor]"""

from __future__ import annotations

from ariane.broker.access.signed_turns import with_signatures
from ariane.broker.broker_handlers import BrokerHandlers, BrokerServices
from ariane.broker.handlers.reading.pull_turns import PullTurns
from ariane.broker.handlers.sending.send_turns import SendTurns
from ariane.broker.lifecycle.write_protection import WriteProtection
from ariane.broker.replication.confirmed_reads import ConfirmedReads
from ariane.kernels.pulls.pull_turn import PULL_CODES
from ariane.kernels.sends.send_turn import SEND_CODES
from ariane.net.connection import Handler
from ariane.net.replies import TurnHandler
from ariane.protocol.codes import RequestCode


def routes(handlers: BrokerHandlers) -> dict[int, Handler]:
    """Return the handler of each request code."""
    code = RequestCode
    return {
        # Messages
        code.SEND_MESSAGE: handlers.send.send_v1,
        code.SEND_MESSAGE_V2: handlers.send.send,
        code.SEND_BATCH_MESSAGE: handlers.send.send,
        code.CONSUMER_SEND_MSG_BACK: handlers.send_back.send_back,
        code.SEND_REPLY_MESSAGE: handlers.reply_message.reply_v1,
        code.SEND_REPLY_MESSAGE_V2: handlers.reply_message.reply,
        code.RECALL_MESSAGE: handlers.recall.recall,
        code.END_TRANSACTION: handlers.transactions.end,
        code.RESUME_CHECK_HALF_MESSAGE: handlers.transactions.resume,
        code.PULL_MESSAGE: handlers.pull.pull,
        code.LITE_PULL_MESSAGE: handlers.pull.pull,
        code.QUERY_MESSAGE: handlers.message_query.query,
        code.VIEW_MESSAGE_BY_ID: handlers.message_query.view,
        # POP
        code.POP_MESSAGE: handlers.pop.pop,
        code.ACK_MESSAGE: handlers.pop.ack,
        code.BATCH_ACK_MESSAGE: handlers.pop.batch_ack,
        code.CHANGE_MESSAGE_INVISIBLETIME: handlers.pop.change_invisible_time,
        code.NOTIFICATION: handlers.pop.notification,
        code.POLLING_INFO: handlers.pop.polling_info,
        code.LIST_IN_FLIGHT: handlers.in_flight.list_messages,
        code.QUERY_ASSIGNMENT: handlers.assignments.query,
        code.SET_MESSAGE_REQUEST_MODE: handlers.assignments.set_mode,
        # Offsets
        code.QUERY_CONSUMER_OFFSET: handlers.offsets.query_consumer_offset,
        code.UPDATE_CONSUMER_OFFSET: handlers.offsets.update_consumer_offset,
        code.GET_ALL_CONSUMER_OFFSET: handlers.offsets.all_consumer_offsets,
        code.GET_MAX_OFFSET: handlers.offsets.max_offset,
        code.GET_MIN_OFFSET: handlers.offsets.min_offset,
        code.GET_EARLIEST_MSG_STORETIME: handlers.offsets.earliest_time,
        code.SEARCH_OFFSET_BY_TIMESTAMP: handlers.offsets.search_by_time,
        # Clients
        code.HEART_BEAT: handlers.client_sessions.heartbeat,
        code.UNREGISTER_CLIENT: handlers.client_sessions.unregister,
        code.CHECK_CLIENT_CONFIG: handlers.client_sessions.check_client,
        code.GET_CONSUMER_LIST_BY_GROUP: handlers.client_sessions.consumer_list,
        code.LOCK_BATCH_MQ: handlers.client_sessions.lock,
        code.UNLOCK_BATCH_MQ: handlers.client_sessions.unlock,
        code.GET_CONSUMER_CONNECTION_LIST: handlers.client_sessions.consumer_connections,
        code.GET_PRODUCER_CONNECTION_LIST: handlers.client_sessions.producer_connections,
        code.INVOKE_BROKER_TO_RESET_OFFSET: handlers.consumer_admin.reset_offsets,
        code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: handlers.consumer_admin.consumer_status,
        code.GET_CONSUMER_RUNNING_INFO: handlers.consumer_admin.running_info,
        code.CONSUME_MESSAGE_DIRECTLY: handlers.consumer_admin.consume_directly,
        # Topics and groups
        code.UPDATE_AND_CREATE_TOPIC: handlers.topic_admin.create_topic,
        code.DELETE_TOPIC_IN_BROKER: handlers.topic_admin.delete_topic,
        code.GET_ALL_TOPIC_CONFIG: handlers.topic_admin.all_topics,
        code.GET_TOPIC_CONFIG: handlers.topic_admin.topic_config,
        code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: handlers.topic_admin.put_group,
        code.DELETE_SUBSCRIPTIONGROUP: handlers.topic_admin.delete_group,
        code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: handlers.topic_admin.all_groups,
        code.GET_SUBSCRIPTIONGROUP_CONFIG: handlers.topic_admin.group_config,
        # Statistics
        code.GET_TOPIC_STATS_INFO: handlers.statistics.topic_stats,
        code.GET_CONSUME_STATS: handlers.statistics.consume_stats,
        code.GET_BROKER_CONSUME_STATS: handlers.statistics.all_consume_stats,
        code.QUERY_CONSUME_TIME_SPAN: handlers.statistics.time_spans,
        code.VIEW_BROKER_STATS_DATA: handlers.statistics.view,
        code.REQUEST_BATCH: handlers.request_batch.batch,
        code.GET_BROKER_RUNTIME_INFO: handlers.runtime_info.runtime_info,
        # The broker as a whole
        code.GET_ALL_DELAY_OFFSET: handlers.broker_admin.delay_offsets,
        code.QUERY_TOPIC_CONSUME_BY_WHO: handlers.broker_admin.consumer_groups,
        code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: handlers.broker_admin.system_topics,
        code.GET_ALL_PRODUCER_INFO: handlers.broker_admin.producers,
        code.REGISTER_FILTER_SERVER: handlers.broker_admin.register_filter_server,
        code.CLONE_GROUP_OFFSET: handlers.broker_admin.clone_offsets,
        code.QUERY_CORRECTION_OFFSET: handlers.broker_admin.correction,
        code.QUERY_CONSUME_QUEUE: handlers.broker_admin.query_queue,
        code.CLEAN_UNUSED_TOPIC: handlers.broker_admin.clean_unused_topics,
        code.CLEAN_EXPIRED_CONSUMEQUEUE: handlers.broker_admin.clean_expired_queues,
        code.DELETE_EXPIRED_COMMITLOG: handlers.file_expiry.delete_expired,
        code.UPDATE_BROKER_CONFIG: handlers.config_admin.update_config,
        code.GET_BROKER_CONFIG: handlers.config_admin.get_config,
        # Access control
        code.UPDATE_AND_CREATE_ACL_CONFIG: handlers.acl_admin.update_account,
        code.DELETE_ACL_CONFIG: handlers.acl_admin.delete_account,
        code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: handlers.acl_admin.update_white_addresses,
        code.GET_BROKER_CLUSTER_ACL_INFO: handlers.acl_admin.version,
        code.GET_BROKER_CLUSTER_ACL_CONFIG: handlers.acl_admin.config,
        code.AUTH_CREATE_USER: handlers.user_admin.create_user,
        code.AUTH_UPDATE_USER: handlers.user_admin.update_user,
        code.AUTH_DELETE_USER: handlers.user_admin.delete_user,
        code.AUTH_GET_USER: handlers.user_admin.user,
        code.AUTH_LIST_USER: handlers.user_admin.users,
        code.AUTH_CREATE_ACL: handlers.user_admin.put_policies,
        code.AUTH_UPDATE_ACL: handlers.user_admin.put_policies,
        code.AUTH_DELETE_ACL: handlers.user_admin.delete_policies,
        code.AUTH_GET_ACL: handlers.user_admin.policies,
        code.AUTH_LIST_ACL: handlers.user_admin.all_policies,
        code.GET_AUDIT_LOG: handlers.audit.read,
    }


def turns(
    services: BrokerServices, handlers: BrokerHandlers, protection: WriteProtection, reads: ConfirmedReads
) -> dict[int, TurnHandler]:
    """Return the fast paths of sends and pulls by code."""
    settings, state, limits = services.settings, services.state, services.server.limits
    sends = SendTurns(
        settings=settings,
        topics=state.topics,
        store=services.store,
        store_host=services.store_host,
        listener=services.dispatcher,
        durability=services.flusher,
        stats=services.stats,
        limits=limits,
        protection=protection,
        changes=state.change_log,
        clock=services.clock,
        slaves=services.feed if settings.current.broker_role == "SYNC_MASTER" else None,
    )
    pulls = PullTurns(
        settings=settings,
        filters=handlers.pull_filters,
        offsets=state.offsets,
        store=services.store,
        stats=services.stats,
        limits=limits,
        changes=state.change_log,
        clock=services.clock,
    )
    paths: dict[int, TurnHandler] = {
        **dict.fromkeys(SEND_CODES, sends),
        **dict.fromkeys(PULL_CODES, reads.with_turn_check(pulls)),
    }
    return with_signatures(paths, services.access, limits) if services.access else paths
