"""Keys of broker.conf in 4.9.4 that are not settings of this broker. [BrokerConfig, MessageStoreConfig, Netty…Config]

Each key of 4.9.4 is in exactly one of: the fields of `config.BrokerConfig`, WITHOUT_EFFECT, UNSUPPORTED.
"""

from __future__ import annotations

from ariane.settings.unknown_keys import Unsupported

_NO_POOLS = "one event loop handles every request, without thread pools"
_NOT_MAPPED = "files are written and read, not mapped into memory"
_UNUSED = "4.9.4 does not read it either"
_FLUSHES_ALL = "a flush writes everything that is not on the disk yet, at every interval"
_SOCKETS = "connections use the operating system's buffer sizes; limits are serverConnectionsMax and serverRequestsMax"
_CLIENT = "the broker's own connections to name servers and its master need no such setting"
_DLEDGER = "it belongs to enableDLegerCommitLog, which this broker refuses"
_ADDRESS_SERVER = "it belongs to fetchNamesrvAddrByAddressServer, which this broker refuses"

WITHOUT_EFFECT: dict[str, str] = {
    **dict.fromkeys(
        (
            "sendMessageThreadPoolNums", "pullMessageThreadPoolNums", "queryMessageThreadPoolNums",
            "adminBrokerThreadPoolNums", "clientManageThreadPoolNums", "consumerManageThreadPoolNums",
            "heartbeatThreadPoolNums", "endTransactionThreadPoolNums", "processReplyMessageThreadPoolNums",
            "putMessageFutureThreadPoolNums", "sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity",
            "queryThreadPoolQueueCapacity", "putThreadPoolQueueCapacity", "replyThreadPoolQueueCapacity",
            "clientManagerThreadPoolQueueCapacity", "consumerManagerThreadPoolQueueCapacity",
            "heartbeatThreadPoolQueueCapacity", "endTransactionPoolQueueCapacity", "serverWorkerThreads",
            "serverSelectorThreads", "serverCallbackExecutorThreads", "clientWorkerThreads",
            "clientCallbackExecutorThreads", "useReentrantLockWhenPutMessage", "useEpollNativeSelector",
            "serverPooledByteBufAllocatorEnable", "clientPooledByteBufAllocatorEnable", "debugLockEnable",
        ),
        _NO_POOLS,
    ),
    **dict.fromkeys(
        (
            "transientStorePoolEnable", "transientStorePoolSize", "fastFailIfNoBufferInStorePool", "warmMapedFileEnable",
            "flushLeastPagesWhenWarmMapedFile", "transferMsgByHeap", "commitIntervalCommitLog",
            "commitCommitLogLeastPages", "commitCommitLogThoroughInterval", "destroyMapedFileIntervalForcibly",
            "redeleteHangedFileInterval",
        ),
        _NOT_MAPPED,
    ),
    **dict.fromkeys(
        (
            "flushCommitLogTimed", "flushCommitLogLeastPages", "flushCommitLogThoroughInterval",
            "flushConsumeQueueLeastPages", "flushConsumeQueueThoroughInterval",
        ),
        _FLUSHES_ALL,
    ),
    **dict.fromkeys(
        (
            "flushConsumerOffsetHistoryInterval", "highSpeedMode", "maxDelayTime", "putMsgIndexHightWater",
            "preferredLeaderId", "channelNotActiveInterval",
        ),
        _UNUSED,
    ),
    **dict.fromkeys(
        (
            "serverOnewaySemaphoreValue", "serverAsyncSemaphoreValue", "serverSocketSndBufSize",
            "serverSocketRcvBufSize", "serverSocketBacklog", "writeBufferHighWaterMark", "writeBufferLowWaterMark",
        ),
        _SOCKETS,
    ),
    **dict.fromkeys(
        (
            "clientOnewaySemaphoreValue", "clientAsyncSemaphoreValue", "connectTimeoutMillis",
            "clientChannelMaxIdleTimeSeconds", "clientSocketSndBufSize", "clientSocketRcvBufSize",
            "clientCloseSocketIfTimeout",
        ),
        _CLIENT,
    ),
    **dict.fromkeys(
        (
            "dLegerGroup", "dLegerPeers", "dLegerSelfId", "storePathDLedgerCommitLog", "enableBatchPush",
            "isEnableBatchPush",
        ),
        _DLEDGER,
    ),
    **dict.fromkeys(("rmqAddressServerDomain", "rmqAddressServerSubGroup"), _ADDRESS_SERVER),
    **dict.fromkeys(
        (
            "commercialEnable", "commercialBaseCount", "commercialBigCount", "commercialTimerCount",
            "commercialTransCount",
        ),
        "only metering plug-ins of Java's broker read it",
    ),
    **dict.fromkeys(
        ("enableCalcFilterBitMap", "enableConsumeQueueExt", "mappedFileSizeConsumeQueueExt", "bitMapLengthConsumeQueueExt"),
        "expressions are evaluated when messages are pulled; the extended consume queue would only save some of that",
    ),
    **dict.fromkeys(
        (
            "enableScheduleAsyncDeliver", "scheduleAsyncDeliverMaxPendingLimit",
            "scheduleAsyncDeliverMaxResendNum2Blocked",
        ),
        "delayed messages are delivered in batches, in the order of their time",
    ),
    "enableScheduleMessageStats": "delivered delayed messages are always counted",
    "haListenPort": "slaves connect to listenPort + 1, in 4.9.4 too",
    "messageIndexSafe": "a start always indexes again what a crash took from the index",
    "maxLmqConsumeQueueNum": "it belongs to enableLmq, which this broker refuses",
    "filterServerNums": "the broker starts no filter server processes; use SQL92 expressions (enablePropertyFilter)",
    "forceRegister": "the broker registers at every interval and at every change",
    "compressedRegister": "name servers accept registrations in either form",
    "isolateLogEnable": "each process has one log: standard error, or the file of --log",
}  # fmt: skip

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
    "useTLS": Unsupported(
        "false", "this broker has no TLS, and would talk to name servers and its master in clear; remove the key"
    ),
}
