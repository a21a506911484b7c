package ariane.peers;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.remoting.RPCHook;

/** Sends `count` messages and prints one JSON line for each: namesrv topic group count [name=value ...].
 * `namespace` goes before topics and groups, `delay` is a delay level, `property` a list NAME:VALUE,... of properties; a VALUE `+MS` is so many ms from now on.
 * `trace` writes traces; its value is how many ms to wait for them (1500).
 * `delay` and `property` may be lists with | between them: the n-th message takes the n-th, again from the start behind their end. */
public final class Produce {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        String topic = args[1];
        int count = Integer.parseInt(args[3]);
        Map<String, String> options = options(args, 4);
        DefaultMQProducer producer = new DefaultMQProducer(
            args[2], account(options), options.containsKey("trace"), null);
        producer.setNamesrvAddr(args[0]);
        producer.setNamespace(options.get("namespace"));
        producer.setSendMsgTimeout(10_000);
        producer.start();
        String[] tags = options.getOrDefault("tags", "").split(",");
        int size = Integer.parseInt(options.getOrDefault("size", "0"));
        int batch = Integer.parseInt(options.getOrDefault("batch", "1"));
        int orders = Integer.parseInt(options.getOrDefault("orders", "0"));
        for (int at = 0; at < count; at += batch) {
            List<Message> messages = new ArrayList<>();
            for (int number = at; number < Math.min(count, at + batch); number++) {
                String key = options.getOrDefault("keys", "K") + "-" + (orders > 0 ? number % orders : number);
                Message message = new Message(topic, tags[number % tags.length], key, body(number, size));
                if (options.containsKey("number")) {
                    message.putUserProperty(options.get("number"), String.valueOf(number));
                }
                if (options.containsKey("delay")) {
                    message.setDelayTimeLevel(Integer.parseInt(turn(options.get("delay"), number)));
                }
                properties(turn(options.getOrDefault("property", ""), number)).forEach((name, value) -> MessageAccessor.putProperty(message, name, value));
                messages.add(message);
            }
            final int order = orders > 0 ? at % orders : -1;
            SendResult result;
            if (batch > 1) {
                result = producer.send(messages);
            } else if (order >= 0) {
                result = producer.send(messages.get(0), (queues, message, arg) -> queues.get(order % queues.size()), null);
            } else {
                result = producer.send(messages.get(0));
            }
            String[] ids = result.getMsgId().split(",");
            String[] offsetIds = result.getOffsetMsgId().split(",");
            for (int i = 0; i < messages.size(); i++) {
                System.out.println(new Json().put("msgId", ids[i]).put("offsetMsgId", offsetIds[i])
                    .put("queueId", result.getMessageQueue().getQueueId()).put("queueOffset", result.getQueueOffset() + i)
                    .put("key", messages.get(i).getKeys()).put("status", result.getSendStatus().name())
                    .put("properties", messages.get(i).getProperties()).put("sentAt", System.currentTimeMillis()));
            }
        }
        if (options.containsKey("trace")) {
            String wait = options.get("trace");
            // At shutdown the dispatcher drops what it has not sent: in 4.9.4 of the last 500 ms, in 5.3.3 of the last 5 s.
            Thread.sleep(wait.isEmpty() ? 1500 : Long.parseLong(wait));
        }
        producer.shutdown();
        Serve.exit(0); // threads of the client outlive its shutdown by 3 s
    }

    static byte[] body(int number, int size) {
        byte[] text = ("message " + number).getBytes(StandardCharsets.UTF_8);
        if (size <= text.length) {
            return text;
        }
        byte[] body = Arrays.copyOf(text, size);
        Arrays.fill(body, text.length, size, (byte) 'x');
        return body;
    }

    private static String turn(String list, int number) {
        String[] all = list.split("\\|");
        return all[number % all.length];
    }

    private static Map<String, String> properties(String list) {
        Map<String, String> properties = new HashMap<>();
        for (String pair : list.split(",")) {
            String[] own = pair.split(":", 2);
            if (own.length == 2) {
                long now = own[1].startsWith("+") ? System.currentTimeMillis() : -1;
                properties.put(own[0], now < 0 ? own[1] : String.valueOf(now + Long.parseLong(own[1].substring(1))));
            }
        }
        return properties;
    }

    /** Signs requests when `account=accessKey:secretKey` is given. */
    static RPCHook account(Map<String, String> options) {
        String[] keys = options.getOrDefault("account", "").split(":");
        return keys.length == 2 ? new AclClientRPCHook(new SessionCredentials(keys[0], keys[1])) : null;
    }

    static Map<String, String> options(String[] args, int from) {
        Map<String, String> options = new HashMap<>();
        for (int i = from; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            options.put(pair[0], pair.length > 1 ? pair[1] : "");
        }
        return options;
    }
}
