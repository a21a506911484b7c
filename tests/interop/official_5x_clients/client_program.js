// The official Node client of RocketMQ 5: node client_program.js ADDRESS TOPIC GROUP. Each event is a line.
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const [endpoints, topic, group] = process.argv.slice(2);
const logger = { debug() {}, info() {}, warn() {}, error(...values) { console.error(...values); } };
const report = (...words) => console.log(words.join(' '));

async function main() {
  const producer = new Producer({ endpoints, topics: [topic], logger });
  await producer.startup();
  await producer.send({ topic, tag: 'A', keys: ['key'], body: Buffer.from('normal') });
  await producer.send({ topic, messageGroup: 'group-1', body: Buffer.from('ordered') });
  await producer.send({ topic, delay: 1500, body: Buffer.from('delayed') });
  report('sent');
  await producer.shutdown();

  const subscriptions = new Map([[topic, FilterExpression.SUB_ALL]]);
  const simple = new SimpleConsumer({ endpoints, logger, consumerGroup: `${group}-simple`, subscriptions, awaitDuration: 5000 });
  await simple.startup();
  for (let count = 0; count < 3;) {
    for (const message of await simple.receive(16, 15000)) {
      report('received', message.body, message.deliveryAttempt, message.tag ?? '-');
      await simple.ack(message);
      count++;
    }
  }
  await simple.shutdown();

  await new Promise(async resolve => {
    let left = 3;
    const push = new PushConsumer({
      endpoints, logger, consumerGroup: `${group}-push`, subscriptions,
      messageListener: {
        async consume(message) {
          report('pushed', message.body, message.deliveryAttempt);
          if (message.deliveryAttempt === 1) return ConsumeResult.FAILURE;
          if (!--left) setTimeout(resolve, 1000);  // after the last acknowledgement
          return ConsumeResult.SUCCESS;
        },
      },
    });
    await push.startup();
  });
  report('done');
  process.exit(0);
}

main();
