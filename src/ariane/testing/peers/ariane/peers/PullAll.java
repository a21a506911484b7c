package ariane.peers;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Prints every message of all queues of a topic: namesrv topic. */
public final class PullAll {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("PullAll");
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(args[1])) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult result = consumer.pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        System.out.println(Json.of(message));
                    }
                }
                offset = Math.max(offset + (result.getPullStatus() == PullStatus.NO_NEW_MSG ? end : 0), result.getNextBeginOffset());
            }
        }
        consumer.shutdown();
        Serve.exit(0); // threads of the client outlive its shutdown by 3 s
    }
}
