package ariane.peers;

import java.util.Map;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends `count` messages in transactions, answers checks for `seconds`, and prints a JSON line for each of both:
 * namesrv topic group count seconds [first=commit,rollback,unknown] [check=commit] [keys=K] [trace] [namespace=N].
 * The n-th message takes the n-th state of both lists, again from the start behind their end.
 */
public final class Transact {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        int count = Integer.parseInt(args[3]);
        Map<String, String> options = Produce.options(args, 5);
        String[] first = options.getOrDefault("first", "commit").split(",");
        String[] check = options.getOrDefault("check", "commit").split(",");
        TransactionMQProducer producer = options.containsKey("trace")
            ? new TransactionMQProducer(null, args[2], null, true, null) : new TransactionMQProducer(args[2]);
        producer.setNamesrvAddr(args[0]);
        producer.setNamespace(options.get("namespace"));
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object number) {
                return state(first, (Integer) number);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                LocalTransactionState state = state(check, Integer.parseInt(message.getKeys().split("-")[1]));
                System.out.println(Json.of(message).put("msgId", message.getTransactionId()).put("event", "check").put("state", state.name())
                    .put("checks", message.getProperty("TRANSACTION_CHECK_TIMES")));
                return state;
            }
        });
        producer.start();
        producer.getDefaultMQProducerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        for (int number = 0; number < count; number++) {
            String key = options.getOrDefault("keys", "K") + "-" + number;
            Message message = new Message(args[1], "a", key, Produce.body(number, 0));
            TransactionSendResult sent = producer.sendMessageInTransaction(message, number);
            System.out.println(new Json().put("event", "sent").put("msgId", sent.getMsgId()).put("key", key)
                .put("queueOffset", sent.getQueueOffset()).put("status", sent.getSendStatus().name())
                .put("state", sent.getLocalTransactionState().name()));
        }
        if (count == 0) { // brokers learn of the group with a heartbeat, which needs a route
            producer.fetchPublishMessageQueues(args[1]);
            producer.getDefaultMQProducerImpl().getmQClientFactory().sendHeartbeatToAllBrokerWithLock();
        }
        Thread.sleep(1000L * Integer.parseInt(args[4]));
        producer.shutdown();
        Serve.exit(0); // threads of the client outlive its shutdown by 3 s
    }

    private static LocalTransactionState state(String[] states, int number) {
        switch (states[number % states.length]) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            default:
                return LocalTransactionState.UNKNOW;
        }
    }
}
