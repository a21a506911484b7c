"""Keys of broker.conf in 4.9.4 that are not settings of this broker. [BrokerConfig, MessageStoreConfig, Netty…Config]

Each key of 4.9.4 is in exactly one of: the fields of `config.BrokerConfig`, WITHOUT_EFFECT, UNSUPPORTED.
"""

from __future__ import annotations

from ariane.settings.unknown_keys import Unsupported

# Reason → the keys that have no effect for it.
_REASONS = {
    "one event loop handles every request, without thread pools": (
        "sendMessageThreadPoolNums pullMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums "
        "clientManageThreadPoolNums consumerManageThreadPoolNums heartbeatThreadPoolNums endTransactionThreadPoolNums "
        "processReplyMessageThreadPoolNums putMessageFutureThreadPoolNums sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity "
        "queryThreadPoolQueueCapacity putThreadPoolQueueCapacity replyThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity "
        "consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity endTransactionPoolQueueCapacity "
        "serverWorkerThreads serverSelectorThreads serverCallbackExecutorThreads clientWorkerThreads clientCallbackExecutorThreads "
        "useReentrantLockWhenPutMessage useEpollNativeSelector serverPooledByteBufAllocatorEnable "
        "clientPooledByteBufAllocatorEnable debugLockEnable"
    ),
    "files are written and read, not mapped into memory": (
        "transientStorePoolEnable transientStorePoolSize fastFailIfNoBufferInStorePool warmMapedFileEnable "
        "flushLeastPagesWhenWarmMapedFile transferMsgByHeap commitIntervalCommitLog commitCommitLogLeastPages "
        "commitCommitLogThoroughInterval destroyMapedFileIntervalForcibly redeleteHangedFileInterval"
    ),
    "a flush writes everything that is not on the disk yet, at every interval": (
        "flushCommitLogTimed flushCommitLogLeastPages flushCommitLogThoroughInterval flushConsumeQueueLeastPages "
        "flushConsumeQueueThoroughInterval"
    ),
    "4.9.4 does not read it either": (
        "flushConsumerOffsetHistoryInterval highSpeedMode maxDelayTime putMsgIndexHightWater preferredLeaderId "
        "channelNotActiveInterval"
    ),
    "connections use the operating system's buffer sizes; limits are serverConnectionsMax and serverRequestsMax": (
        "serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverSocketSndBufSize serverSocketRcvBufSize serverSocketBacklog "
        "writeBufferHighWaterMark writeBufferLowWaterMark"
    ),
    "the broker's own connections to name servers and its master need no such setting": (
        "clientOnewaySemaphoreValue clientAsyncSemaphoreValue connectTimeoutMillis clientChannelMaxIdleTimeSeconds "
        "clientSocketSndBufSize clientSocketRcvBufSize clientCloseSocketIfTimeout"
    ),
    "it belongs to enableDLegerCommitLog, which this broker refuses": (
        "dLegerGroup dLegerPeers dLegerSelfId storePathDLedgerCommitLog enableBatchPush isEnableBatchPush"
    ),
    "it belongs to fetchNamesrvAddrByAddressServer, which this broker refuses": "rmqAddressServerDomain rmqAddressServerSubGroup",
    "only metering plug-ins of Java's broker read it": (
        "commercialEnable commercialBaseCount commercialBigCount commercialTimerCount commercialTransCount"
    ),
    "expressions are evaluated when messages are pulled; the extended consume queue would only save some of that": (
        "enableCalcFilterBitMap enableConsumeQueueExt mappedFileSizeConsumeQueueExt bitMapLengthConsumeQueueExt"
    ),
    "delayed messages are delivered in batches, in the order of their time": (
        "enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit scheduleAsyncDeliverMaxResendNum2Blocked"
    ),
    "delivered delayed messages are always counted": "enableScheduleMessageStats",
    "slaves connect to listenPort + 1, in 4.9.4 too": "haListenPort",
    "a start always indexes again what a crash took from the index": "messageIndexSafe",
    "it belongs to enableLmq, which this broker refuses": "maxLmqConsumeQueueNum",
    "the broker starts no filter server processes; use SQL92 expressions (enablePropertyFilter)": "filterServerNums",
    "the broker registers at every interval and at every change": "forceRegister",
    "name servers accept registrations in either form": "compressedRegister",
    "each process has one log: standard error, or the file of --log": "isolateLogEnable",
    "users and policies are checked by the broker itself, at each request, without caches": (
        "authenticationProvider authenticationMetadataProvider authenticationStrategy authorizationProvider "
        "authorizationMetadataProvider authorizationStrategy userCacheMaxNum userCacheExpiredSecond userCacheRefreshSecond "
        "aclCacheMaxNum aclCacheExpiredSecond aclCacheRefreshSecond statefulAuthenticationCacheMaxNum "
        "statefulAuthenticationCacheExpiredSecond statefulAuthorizationCacheMaxNum statefulAuthorizationCacheExpiredSecond"
    ),
    "with aclEnable, the accounts of plain_acl.yml are valid alongside users": "migrateAuthFromV1Enabled",
}
WITHOUT_EFFECT = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}

UNSUPPORTED: dict[str, Unsupported] = {
    "enableDLegerCommitLog": Unsupported(
        "false",
        "this broker does not read or write a DLedger commit log, and would serve this store without its messages."
        " Run it with Java, or replicate with brokerRole = SYNC_MASTER and SLAVE",
    ),
    "readOnlyCommitLogStorePaths": Unsupported(
        "",
        "this broker has its commit log in one directory, and would serve the store without the messages of this one."
        " Move all files into the directory of storePathCommitLog and remove the key",
    ),
    "duplicationEnable": Unsupported(
        "false",
        "this broker does not hold back messages that no replica has confirmed; use brokerRole = SYNC_MASTER,"
        " or remove the key",
    ),
    "enableLmq": Unsupported(
        "false", "this broker has no light queues, and would not write to or serve them; remove the key, or use Java"
    ),
    "enableMultiDispatch": Unsupported(
        "false",
        "this broker does not dispatch a message to several queues, so their consumers would miss it; remove the key,"
        " or use Java",
    ),
    "messageStorePlugIn": Unsupported(
        "", "this broker loads no Java classes, and would store messages without what they add; remove the key"
    ),
    "fetchNamesrvAddrByAddressServer": Unsupported(
        "false",
        "this broker queries no address server, so no client would find it. Set the name servers with namesrvAddr or -n",
        unless_set="namesrvAddr",
        unless_reason="namesrvAddr sets the name servers, and takes precedence in 4.9.4, too",
    ),
}
