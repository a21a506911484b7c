package ariane.peers;

import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Polls until `count` messages came and commits them, or until time is over (status 3): namesrv topic group expression count seconds. */
public final class LitePull {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        int left = Integer.parseInt(args[4]);
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(args[5]));
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.subscribe(args[1], args[3]);
        consumer.start();
        while (left > 0 && System.nanoTime() < end) {
            for (MessageExt message : consumer.poll(500)) {
                System.out.println(Json.of(message));
                left--;
            }
            consumer.commitSync();
        }
        consumer.shutdown(); // stores what was committed
        Serve.exit(left > 0 ? 3 : 0);
    }
}
