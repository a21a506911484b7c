package ariane.peers;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
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
            CompletableFuture<Message> answer = new CompletableFuture<>();
            // Without a selector, 4.9.4 takes its own message for the reply; without a callback, 5.3.3 does not wait for the reply.
            producer.request(message, (queues, one, arg) -> queues.get(0), null, new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    answer.complete(reply);
                }

                @Override
                public void onException(Throwable error) {
                    answer.completeExceptionally(error);
                }
            }, 30_000);
            MessageExt reply = (MessageExt) answer.get(60, TimeUnit.SECONDS);
            System.out.println(Json.of(reply).put("correlationId", reply.getProperty("CORRELATION_ID")));
        }
        producer.shutdown();
        Serve.exit(0); // threads of the client outlive its shutdown by 3 s
    }
}
