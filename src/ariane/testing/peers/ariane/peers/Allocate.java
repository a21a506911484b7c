package ariane.peers;

import java.util.Arrays;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Prints what each strategy assigns to each member, a line per case: members,joined broker:id,joined rooms,joined. The room of a
 * broker or a client is what precedes the first @; the fixed queues are every third one. */
public final class Allocate {
    public static void main(String[] args) {
        for (int at = 0; at < args.length; at += 3) {
            List<String> members = Arrays.asList(args[at].split(","));
            List<MessageQueue> queues = new ArrayList<>();
            List<MessageQueue> fixed = new ArrayList<>();
            for (String text : args[at + 1].split(",")) {
                int colon = text.indexOf(':');
                queues.add(new MessageQueue("T", text.substring(0, colon), Integer.parseInt(text.substring(colon + 1))));
            }
            for (int number = 0; number < queues.size(); number += 3) {
                fixed.add(queues.get(number));
            }
            AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
            config.setMessageQueueList(fixed);
            AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
            rooms.setConsumeridcs(new HashSet<>(Arrays.asList(args[at + 2].split(","))));
            AllocateMachineRoomNearby.MachineRoomResolver resolver = new AllocateMachineRoomNearby.MachineRoomResolver() {
                @Override
                public String brokerDeployIn(MessageQueue queue) {
                    return queue.getBrokerName().split("@")[0];
                }

                @Override
                public String consumerDeployIn(String client) {
                    return client.split("@")[0];
                }
            };
            Map<String, AllocateMessageQueueStrategy> strategies = new LinkedHashMap<>();
            strategies.put("average", new AllocateMessageQueueAveragely());
            strategies.put("by_circle", new AllocateMessageQueueAveragelyByCircle());
            strategies.put("consistent_hash", new AllocateMessageQueueConsistentHash());
            strategies.put("fixed", config);
            strategies.put("machine_rooms", rooms);
            strategies.put("nearby", new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), resolver));
            for (Map.Entry<String, AllocateMessageQueueStrategy> strategy : strategies.entrySet()) {
                for (String member : members) {
                    List<String> texts = new ArrayList<>();
                    for (MessageQueue queue : strategy.getValue().allocate("G", member, queues, members)) {
                        texts.add(queue.getBrokerName() + ":" + queue.getQueueId());
                    }
                    System.out.println(new Json().put("case", at / 3).put("strategy", strategy.getKey()).put("member", member)
                        .put("queues", texts));
                }
            }
        }
    }
}
