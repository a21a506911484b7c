package ariane.peers;

import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Prints messages until `count` came (0: until it is stopped) or time is over (status 3): namesrv topic group expression count seconds [name=value ...].
 * `fail` fails on each message it prints, `level` asks for that delay, `most` bounds the attempts, `broadcast` reads all queues,
 * `pause` takes up to so many ms for each message before it is printed; with `pop`, the broker assigns the queues (5.x). */
public final class Consume {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        Map<String, String> options = Produce.options(args, 6);
        int count = Integer.parseInt(args[4]);
        CountDownLatch left = new CountDownLatch(count == 0 ? Integer.MAX_VALUE : count);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            args[2], Produce.account(options), new AllocateMessageQueueAveragely(), options.containsKey("trace"), null);
        consumer.setNamesrvAddr(args[0]);
        consumer.setNamespace(options.get("namespace"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (options.containsKey("sql")) {
            consumer.subscribe(args[1], MessageSelector.bySql(args[3]));
        } else {
            consumer.subscribe(args[1], args[3]);
        }
        consumer.setAwaitTerminationMillisWhenShutdown(10_000); // by default, what the last call consumed is not saved
        int pause = Integer.parseInt(options.getOrDefault("pause", "0"));
        boolean fail = options.containsKey("fail");
        consumer.setMaxReconsumeTimes(Integer.parseInt(options.getOrDefault("most", "-1")));
        if (options.containsKey("broadcast")) {
            // MessageModel is in another package in 5.x
            consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
        }
        if (options.containsKey("pop")) { // not in 4.9.4
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        if (options.containsKey("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> print(message, left, pause));
                return fail ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> print(message, left, pause));
                context.setDelayLevelWhenNextConsume(Integer.parseInt(options.getOrDefault("level", "0")));
                return fail ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        boolean all = left.await(Long.parseLong(args[5]), TimeUnit.SECONDS);
        Thread.sleep(fail ? 2000 : 0); // what the last call failed on is still to be sent back
        Thread.sleep(options.containsKey("trace") ? 1500 : 0);
        consumer.shutdown();
        Serve.exit(all ? 0 : 3);
    }

    static void print(MessageExt message, CountDownLatch left, int pause) {
        LockSupport.parkNanos(pause == 0 ? 0 : ThreadLocalRandom.current().nextLong(pause * 1_000_000L));
        String line = Json.of(message).put("receivedAt", System.currentTimeMillis()).toString();
        synchronized (Consume.class) {
            System.out.println(line);
        }
        left.countDown();
    }
}
