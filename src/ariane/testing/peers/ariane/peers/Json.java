package ariane.peers;

import com.alibaba.fastjson.JSON;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** One line of output. Bodies are base64. */
final class Json {
    private final Map<String, Object> members = new LinkedHashMap<>();

    /** A client's threads would keep a program alive whose main thread has failed. */
    static void endAtFirstError() {
        if (Serve.isServing()) {
            return;
        }
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(2);
        });
    }

    Json put(String name, Object value) {
        members.put(name, value);
        return this;
    }

    static Json of(MessageExt message) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        String offsetId = message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId();
        return new Json().put("msgId", message.getMsgId()).put("offsetMsgId", offsetId).put("topic", message.getTopic())
            .put("key", message.getKeys()).put("tags", message.getTags()).put("queueId", message.getQueueId())
            .put("queueOffset", message.getQueueOffset()).put("body", Base64.getEncoder().encodeToString(body))
            .put("reconsumeTimes", message.getReconsumeTimes()).put("bornTimestamp", message.getBornTimestamp())
            .put("storeTimestamp", message.getStoreTimestamp()).put("properties", message.getProperties());
    }

    @Override
    public String toString() {
        return JSON.toJSONString(members);
    }
}
