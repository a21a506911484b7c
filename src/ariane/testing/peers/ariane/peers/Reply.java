package ariane.peers;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Replies to requests with their body in upper case, until it is stopped: namesrv topic group [namespace=N]. */
public final class Reply {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        String namespace = Produce.options(args, 3).get("namespace");
        DefaultMQProducer producer = new DefaultMQProducer(args[2] + "_replies");
        producer.setNamesrvAddr(args[0]);
        producer.setNamespace(namespace);
        producer.start();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setNamespace(namespace);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                byte[] body = new String(message.getBody(), StandardCharsets.UTF_8).toUpperCase().getBytes(StandardCharsets.UTF_8);
                try {
                    System.out.println(new Json().put("status", producer.send(MessageUtil.createReplyMessage(message, body)).getSendStatus()));
                } catch (Exception error) {
                    System.out.println(new Json().put("status", error.toString()));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println(new Json().put("ready", true));
        Thread.currentThread().join();
    }
}
