package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdmin;
import org.apache.rocketmq.test.util.MQRandomUtils;

/** In place of the class of this name in Apache's tests, which starts a Java name server and Java brokers: the servers are those of the
 * properties `ariane.namesrv` and `ariane.cluster`. Has the members that the tests of TLS use. */
public class BaseConf {
    public static String nsAddr = System.getProperty("ariane.namesrv");
    protected static int consumeTime = 60_000;
    private static final int QUEUES = 5;
    private static final List<AbstractMQProducer> producers = new ArrayList<>();
    private static final List<AbstractMQConsumer> consumers = new ArrayList<>();

    public static String initTopic() {
        String topic = MQRandomUtils.getRandomTopic();
        if (!MQAdmin.createTopic(nsAddr, System.getProperty("ariane.cluster"), topic, QUEUES)) {
            throw new IllegalStateException("no topic " + topic);
        }
        return topic;
    }

    public static RMQNormalProducer getProducer(String names, String topic) {
        return getProducer(names, topic, false);
    }

    public static RMQNormalProducer getProducer(String names, String topic, boolean tls) {
        RMQNormalProducer producer = new RMQNormalProducer(names, topic, tls);
        producers.add(producer);
        return producer;
    }

    public static RMQNormalConsumer getConsumer(String names, String topic, String expression, AbstractListener listener, boolean tls) {
        String group = MQRandomUtils.getRandomConsumerGroup();
        RMQNormalConsumer consumer = ConsumerFactory.getRMQNormalConsumer(names, group, topic, expression, listener, tls);
        consumers.add(consumer);
        return consumer;
    }

    public static void shutdown() {
        producers.forEach(AbstractMQProducer::shutdown);
        consumers.forEach(AbstractMQConsumer::shutdown);
        producers.clear();
        consumers.clear();
    }
}
