import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/**
 * The official client as a load of a server that is killed: LoadProgram ADDRESS TOPIC FIFO_TOPIC SIMPLE_GROUP PUSH_GROUP ORDERED_GROUP
 * SENDERS MESSAGE_GROUPS INVISIBLE_S. Prints what was sent, delivered and acknowledged; a line on its input stops the producers.
 */
public class LoadProgram {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static volatile boolean isSending = true;

    interface Work {
        void run() throws Exception;
    }

    static synchronized void report(Object... event) {
        StringBuilder line = new StringBuilder();
        for (Object value : event) line.append(line.length() == 0 ? "" : " ").append(value);
        System.out.println(line);
    }

    static String text(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    static String takenMs(MessageView view) throws Exception {
        return ((String) view.getClass().getMethod("getReceiptHandle").invoke(view)).split(" ")[1];
    }

    /** Does some work in a thread, again when it fails. */
    static Thread repeat(Work work) {
        Thread thread = new Thread(() -> {
            while (true) {
                try {
                    work.run();
                    return;
                } catch (Exception error) {
                    report("failed", error.getClass().getSimpleName());
                    try {
                        Thread.sleep(100);
                    } catch (InterruptedException interrupted) {
                        return;
                    }
                }
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    public static void main(String[] args) throws Exception {
        String topic = args[1], fifo = args[2], simpleGroup = args[3], pushGroup = args[4], orderedGroup = args[5];
        int senders = Integer.parseInt(args[6]), messageGroups = Integer.parseInt(args[7]);
        Duration invisible = Duration.ofSeconds(Long.parseLong(args[8]));
        ClientConfiguration config = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false).build();
        FilterExpression all = new FilterExpression("*", FilterExpressionType.TAG);

        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(config).setConsumerGroup(simpleGroup)
            .setAwaitDuration(Duration.ofSeconds(5)).setSubscriptionExpressions(Collections.singletonMap(topic, all)).build();
        for (int i = 0; i < 2; i++) {
            repeat(() -> {
                while (true) {
                    for (MessageView view : simple.receive(16, invisible)) {
                        report("delivered", simpleGroup, text(view), takenMs(view));
                        simple.ack(view);
                        report("acknowledged", simpleGroup, text(view), takenMs(view), System.currentTimeMillis());
                    }
                }
            });
        }
        push(config, pushGroup, topic, all);
        push(config, orderedGroup, fifo, all);

        // One attempt: a send that was stored, and whose answer was lost, is not stored twice.
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(config).setTopics(topic, fifo).setMaxAttempts(1).build();
        List<Thread> sending = new ArrayList<>();
        for (int i = 0; i < senders; i++) {
            String name = "official" + i + "-";
            int[] number = {0};
            sending.add(repeat(() -> {
                while (isSending) {
                    String body = name + number[0]++;
                    producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8)).build());
                    report("sent", body);
                    Thread.sleep(20);
                }
            }));
        }
        for (int i = 0; i < messageGroups; i++) {
            String name = "g" + i;
            int[] number = {0};
            sending.add(repeat(() -> {
                while (isSending) {
                    int sent = number[0]++;
                    byte[] body = (name + "-" + sent).getBytes(StandardCharsets.UTF_8);
                    producer.send(PROVIDER.newMessageBuilder().setTopic(fifo).setMessageGroup(name).setBody(body).build());
                    report("ordered", name, sent);
                    Thread.sleep(100);
                }
            }));
        }
        System.in.read();
        isSending = false;
        for (Thread thread : sending) thread.join();
        report("stopped");
        Thread.sleep(Long.MAX_VALUE);
    }

    static void push(ClientConfiguration config, String group, String topic, FilterExpression all) throws Exception {
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(config).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, all))
            .setMessageListener(view -> {
                report("pushed", group, text(view));
                return ConsumeResult.SUCCESS;
            }).build();
    }
}
