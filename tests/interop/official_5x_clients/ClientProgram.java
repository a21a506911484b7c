import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/** The official Java client of RocketMQ 5 with its defaults, which encrypt: ClientProgram ADDRESS TOPIC TRANSACTION_TOPIC ORDERED_TOPIC GROUP. */
public class ClientProgram {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    static Message message(String topic, String body, Object... options) {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
        for (int i = 0; i < options.length; i += 2) {
            Object value = options[i + 1];
            if (options[i].equals("tag")) builder.setTag((String) value).setKeys("key-" + body).addProperty("name", "value");
            if (options[i].equals("group")) builder.setMessageGroup((String) value);
            if (options[i].equals("deliver")) builder.setDeliveryTimestamp((Long) value);
        }
        return builder.build();
    }

    static synchronized void report(String event, String body, Object value) {
        System.out.println(event + " " + body + " " + value);
    }

    static String text(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static void report(MessageView view) {
        report("received", text(view), view.getDeliveryAttempt() + " " + view.getTag().orElse("-") + " " + view.getKeys()
            + " " + view.getProperties() + " " + view.getMessageGroup().orElse("-"));
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1], transactions = args[2], ordered = args[3], group = args[4];
        ClientConfiguration config = ClientConfiguration.newBuilder().setEndpoints(args[0]).build();
        CountDownLatch checked = new CountDownLatch(1);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(config).setTopics(topic, transactions, ordered)
            .setTransactionChecker(view -> {
                report("checked", text(view), "");
                checked.countDown();
                return TransactionResolution.COMMIT;
            }).build();
        SendReceipt sent = producer.send(message(topic, "normal", "tag", "A"));
        report("sent", "normal", sent.getMessageId());
        producer.send(message(topic, "ordered", "group", "group-1"));
        producer.send(message(topic, "delayed", "deliver", System.currentTimeMillis() + 1500));
        SendReceipt recalled = producer.send(message(topic, "recalled", "deliver", System.currentTimeMillis() + 60000));
        report("recalled", "recalled", producer.recallMessage(topic, recalled.getRecallHandle()).getMessageId().equals(recalled.getMessageId()));
        for (String end : new String[] {"commit", "rollback", "checked"}) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message(transactions, end), transaction);
            if (end.equals("commit")) transaction.commit();
            if (end.equals("rollback")) transaction.rollback();
        }
        report("check", "arrived", checked.await(60, TimeUnit.SECONDS));

        FilterExpression all = new FilterExpression("*", FilterExpressionType.TAG);
        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(config).setConsumerGroup(group + "-simple")
            .setAwaitDuration(Duration.ofSeconds(5)).setSubscriptionExpressions(Collections.singletonMap(topic, all)).build();
        int acknowledged = 0;
        for (long end = System.currentTimeMillis() + 60000; acknowledged < 3 && System.currentTimeMillis() < end; ) {
            for (MessageView view : simple.receive(16, Duration.ofSeconds(15))) {
                report(view);
                if (acknowledged == 0) simple.changeInvisibleDuration(view, Duration.ofSeconds(20));
                simple.ack(view);
                acknowledged++;
            }
        }
        simple.close();

        CountDownLatch done = new CountDownLatch(5);
        PushConsumer push = PROVIDER.newPushConsumerBuilder().setClientConfiguration(config).setConsumerGroup(group + "-push")
            .setSubscriptionExpressions(java.util.Map.of(topic, all, transactions, all))
            .setMessageListener(view -> {
                report("pushed", text(view), view.getDeliveryAttempt());
                if (view.getDeliveryAttempt() == 1) return ConsumeResult.FAILURE;
                done.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        report("push", "complete", done.await(60, TimeUnit.SECONDS));
        Thread.sleep(1000); // the last acknowledgement
        push.close();

        CountDownLatch inOrder = new CountDownLatch(6);
        PushConsumer fifo = PROVIDER.newPushConsumerBuilder().setClientConfiguration(config).setConsumerGroup(group + "-ordered")
            .setSubscriptionExpressions(Collections.singletonMap(ordered, all))
            .setMessageListener(view -> {
                report("ordered", text(view), view.getDeliveryAttempt());
                if (text(view).endsWith("1") && view.getDeliveryAttempt() == 1) return ConsumeResult.FAILURE;
                inOrder.countDown();
                return ConsumeResult.SUCCESS;
            }).build();
        Thread.sleep(2000); // a new group starts at the end of the queues
        for (String number : new String[] {"1", "2", "3"}) {
            for (String name : new String[] {"a", "b"}) producer.send(message(ordered, name + number, "group", name));
        }
        report("order", "complete", inOrder.await(60, TimeUnit.SECONDS));
        Thread.sleep(1000);
        fifo.close();
        producer.close();
        report("done", "", "");
        System.exit(0);
    }
}
