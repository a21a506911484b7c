import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/**
 * The official client under one load: Load send|consume ADDRESS TOPIC IN_FLIGHT WARM_S SECONDS. A send in flight is an asynchronous one;
 * a consumer has IN_FLIGHT threads that receive 32 messages and acknowledge all at once. Prints `measuring`, and then its figures.
 */
public final class Load {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int LATENCIES_MAX = 10_000_000;
    private static final int[] LATENCIES_US = new int[LATENCIES_MAX];
    private static final AtomicInteger COUNT = new AtomicInteger();
    private static volatile boolean isMeasuring, isOver;

    public static void main(String[] args) throws Exception {
        ClientConfiguration config = ClientConfiguration.newBuilder().setEndpoints(args[1]).enableSsl(false).build();
        int inFlight = Integer.parseInt(args[3]);
        Thread clock = new Thread(() -> report(Double.parseDouble(args[4]), Double.parseDouble(args[5])));
        clock.start();
        if (args[0].equals("send")) {
            send(config, args[2], inFlight);
        } else {
            consume(config, args[2], inFlight);
        }
        clock.join();
        System.exit(0); // threads of the client outlive it
    }

    private static void send(ClientConfiguration config, String topic, int inFlight) throws Exception {
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(config).setTopics(topic).build();
        byte[] body = new byte[128];
        Arrays.fill(body, (byte) 'x');
        Semaphore room = new Semaphore(inFlight);
        while (!isOver) {
            room.acquire();
            Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build();
            long started = System.nanoTime();
            producer.sendAsync(message).whenComplete((receipt, error) -> {
                room.release();
                count(started, error);
            });
        }
    }

    private static void consume(ClientConfiguration config, String topic, int threads) throws Exception {
        FilterExpression all = new FilterExpression("*", FilterExpressionType.TAG);
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(config).setConsumerGroup("official")
            .setAwaitDuration(Duration.ofSeconds(10)).setSubscriptionExpressions(Collections.singletonMap(topic, all)).build();
        Thread[] running = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            running[i] = new Thread(() -> {
                while (!isOver) {
                    try {
                        List<CompletableFuture<Void>> acks = new ArrayList<>();
                        for (MessageView view : consumer.receive(32, Duration.ofSeconds(60))) {
                            long started = System.nanoTime();
                            acks.add(consumer.ackAsync(view).whenComplete((done, error) -> count(started, error)));
                        }
                        CompletableFuture.allOf(acks.toArray(new CompletableFuture[0])).join();
                    } catch (ClientException error) {
                        count(0, error);
                    }
                }
            });
            running[i].start();
        }
        for (Thread thread : running) {
            thread.join();
        }
    }

    private static void count(long started, Throwable error) {
        if (error != null && !isOver) {
            error.printStackTrace();
            System.exit(1);
        }
        if (isMeasuring) {
            LATENCIES_US[COUNT.getAndIncrement()] = (int) ((System.nanoTime() - started) / 1000);
        }
    }

    private static void report(double warmS, double seconds) {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        pause(warmS);
        isMeasuring = true;
        long cpu = system.getProcessCpuTime(), started = System.nanoTime();
        System.out.println("measuring");
        pause(seconds);
        isMeasuring = false;
        double took = (System.nanoTime() - started) / 1e9;
        double cpuS = (system.getProcessCpuTime() - cpu) / 1e9;
        int count = COUNT.get();
        int[] latencies = Arrays.copyOf(LATENCIES_US, count);
        Arrays.sort(latencies);
        System.out.printf("{\"messages\": %d, \"seconds\": %.3f, \"rate\": %.0f, \"p50_us\": %d, \"p99_us\": %d, \"cpu_s\": %.3f}%n",
            count, took, count / took, latencies[count / 2], latencies[(int) (count * 0.99)], cpuS);
        isOver = true;
    }

    private static void pause(double seconds) {
        try {
            Thread.sleep((long) (seconds * 1000));
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }
}
