import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The Java client under one load: the twin of python_client.py, with the same arguments and figures. A send in flight is a thread. */
public final class JavaClient {
    private static final long TRACE_MS = 3000; // the dispatcher drops the records that it has not sent when it is shut down
    private static Map<String, String> options;

    public static void main(String[] args) throws Exception {
        options = new HashMap<>();
        for (String option : Arrays.copyOfRange(args, 2, args.length)) {
            String[] pair = option.split("=", 2);
            options.put(pair[0], pair[1]);
        }
        if (args[0].equals("consume")) {
            consume(args[1]);
        } else {
            DefaultMQProducer producer = new DefaultMQProducer(
                group(), options.containsKey("trace"), options.get("trace_topic"));
            producer.setNamesrvAddr(args[1]);
            producer.start();
            if (args[0].equals("sends")) {
                sends(producer);
            } else {
                paced(producer);
            }
            if (options.containsKey("trace")) {
                Thread.sleep(TRACE_MS);
            }
            producer.shutdown();
        }
        System.exit(0); // threads of the client outlive its shutdown
    }

    private static void sends(DefaultMQProducer producer) throws Exception {
        run(producer, Double.parseDouble(options.get("warm")));
        Reading began = new Reading();
        long[] latencies = run(producer, Double.parseDouble(options.get("seconds")));
        String figures = began.until(new Reading(), latencies.length);
        Arrays.sort(latencies);
        System.out.printf("{%s, \"p50 ms\": %f, \"p99 ms\": %f}%n", figures,
            latencies[(int) (latencies.length * 0.5)] / 1e6, latencies[(int) (latencies.length * 0.99)] / 1e6);
    }

    private static long[] run(DefaultMQProducer producer, double seconds) throws Exception {
        int threads = Integer.parseInt(options.get("in_flight"));
        long stopAt = System.nanoTime() + (long) (seconds * 1e9);
        List<List<Long>> latencies = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            latencies.add(new ArrayList<>());
        }
        inThreads(threads, number -> {
            for (long at = System.nanoTime(); at < stopAt; at = System.nanoTime()) {
                producer.send(message());
                latencies.get(number).add(System.nanoTime() - at);
            }
        });
        return latencies.stream().flatMap(List::stream).mapToLong(Long::longValue).toArray();
    }

    private static void paced(DefaultMQProducer producer) throws Exception {
        double rate = Double.parseDouble(options.get("rate"));
        long total = Math.round(rate * Double.parseDouble(options.get("seconds")));
        AtomicLong next = new AtomicLong();
        Reading began = new Reading();
        inThreads(64, number -> {
            for (long message = next.getAndIncrement(); message < total; message = next.getAndIncrement()) {
                long dueAt = began.at + (long) (message / rate * 1e9);
                for (long wait = dueAt - System.nanoTime(); wait > 0; wait = dueAt - System.nanoTime()) {
                    LockSupport.parkNanos(wait);
                }
                producer.send(message());
            }
        });
        System.out.printf("{%s, \"sent\": %d}%n", began.until(new Reading(), total), total);
    }

    private static void consume(String namesrv) throws Exception {
        long count = Long.parseLong(options.get("count"));
        AtomicLong received = new AtomicLong();
        Reading[] points = new Reading[2];
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group());
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(Integer.parseInt(options.get("batch")));
        consumer.subscribe(options.get("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long after = received.addAndGet(messages.size());
            long before = after - messages.size();
            if (before < count * 0.2 && after >= count * 0.2) {
                points[0] = new Reading();
            }
            if (before < count * 0.9 && after >= count * 0.9) {
                points[1] = new Reading();
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        done.await();
        System.out.printf("{%s}%n", points[0].until(points[1], Math.round(count * 0.7)));
        consumer.shutdown();
    }

    private static Message message() {
        byte[] body = new byte[128];
        Arrays.fill(body, (byte) 'x');
        return new Message(options.get("topic"), body);
    }

    private static String group() {
        return "bench-" + System.nanoTime();
    }

    private interface Work {
        void run(int number) throws Exception;
    }

    private static void inThreads(int count, Work work) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int number = i;
            Thread thread = new Thread(() -> {
                try {
                    work.run(number);
                } catch (Exception error) {
                    error.printStackTrace();
                    System.exit(1);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** Time and CPU time of this process. */
    private static final class Reading {
        final long at = System.nanoTime();
        final long cpu = ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();

        String until(Reading end, long messages) {
            return String.format("\"msg/s\": %f, \"cpu us\": %f",
                messages / ((end.at - at) / 1e9), (end.cpu - cpu) / 1e3 / messages);
        }
    }
}
