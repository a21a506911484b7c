package ariane.peers;

import java.util.Map;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Prints the offsets that the members of a group have in memory: namesrv topic group [client id]. mqadmin has no command for it. */
public final class Status {
    public static void main(String[] args) throws Exception {
        Json.endAtFirstError();
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(args[0]);
        admin.start();
        Map<String, Map<MessageQueue, Long>> status = admin.getConsumeStatus(args[1], args[2], args.length > 3 ? args[3] : "");
        status.forEach((clientId, offsets) -> offsets.forEach((queue, offset) -> System.out.println(
            new Json().put("clientId", clientId).put("topic", queue.getTopic()).put("queueId", queue.getQueueId()).put("offset", offset))));
        admin.shutdown();
        Serve.exit(0); // threads of the client outlive its shutdown by 3 s
    }
}
