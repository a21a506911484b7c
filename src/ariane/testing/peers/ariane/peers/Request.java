package ariane.peers;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends `count` requests and prints the reply to each: namesrv topic group count [namespace=N]. */
public final class Request {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        DefaultMQProducer producer = new DefaultMQProducer(args[2]);
        producer.setNamesrvAddr(args[0]);
        producer.setNamespace(Produce.options(args, 4).get("namespace"));
        producer.start();
        for (int number = 0; number < Integer.parseInt(args[3]); number++) {
            Message message = new Message(args[1], ("request " + number).getBytes(StandardCharsets.UTF_8));
            // the form without a selector takes its own message for the reply in 4.9.4
            MessageExt reply = (MessageExt) producer.request(message, (queues, one, arg) -> queues.get(0), null, 30_000);
            System.out.println(Json.of(reply).put("correlationId", reply.getProperty("CORRELATION_ID")));
        }
        producer.shutdown();
        System.exit(0); // threads of the client outlive its shutdown by 3 s
    }
}
