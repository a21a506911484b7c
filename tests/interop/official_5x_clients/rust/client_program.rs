//! The official Rust client of RocketMQ 5: client_program ADDRESS TOPIC TRANSACTION_TOPIC GROUP. Each event is a line.
//!
//! Release 5.0.0 has producers and simple consumers, without push consumers, recall, changes of the invisible time and TLS.

use std::error::Error;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::MessageBuilder;
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use tokio::sync::mpsc;

const INVISIBLE: Duration = Duration::from_secs(10); // the minimum
const TIMEOUT: Duration = Duration::from_secs(60);

fn body(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

async fn send_each_kind(client: ClientOption, topic: &str) -> Result<(), Box<dyn Error>> {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let mut producer = Producer::new(option, client)?;
    producer.start().await?;
    let normal = MessageBuilder::builder().set_topic(topic).set_body(body("normal")).set_tag("A").set_keys(vec!["key"]);
    println!("sent normal {}", producer.send(normal.build()?).await?.message_id());
    for text in ["ordered-1", "ordered-2"] {
        producer.send(MessageBuilder::fifo_message_builder(topic, body(text), "group-1").build()?).await?;
    }
    let deliver_s = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as i64 + 2;
    producer.send(MessageBuilder::delay_message_builder(topic, body("delayed"), deliver_s).build()?).await?;
    Ok(producer.shutdown().await?)
}

/// Commit one transaction, roll one back, and leave one to the check of the server.
async fn send_transactions(client: ClientOption, topic: &str) -> Result<(), Box<dyn Error>> {
    let mut option = ProducerOption::default();
    option.set_topics(vec![topic]);
    let (checks, mut checked) = mpsc::unbounded_channel();
    let mut producer = Producer::new_transaction_producer(
        option,
        client,
        Box::new(move |_, message| {
            checks.send(String::from_utf8_lossy(message.body()).into_owned()).expect("the receiver is open");
            TransactionResolution::COMMIT
        }),
    )?;
    producer.start().await?;
    let send = |text| producer.send_transaction_message(MessageBuilder::transaction_message_builder(topic, body(text)).build().expect("valid"));
    send("committed").await?.commit().await?;
    send("rolled-back").await?.rollback().await?;
    send("checked").await?;
    println!("checked {}", tokio::time::timeout(TIMEOUT, checked.recv()).await?.unwrap_or_default());
    tokio::time::sleep(Duration::from_secs(1)).await; // the response to the check
    Ok(producer.shutdown().await?)
}

/// Receive messages until `count` are acknowledged: the one with the tag at its second delivery, the others at the first.
async fn receive(client: ClientOption, topic: &str, group: &str, count: usize) -> Result<(), Box<dyn Error>> {
    let mut option = SimpleConsumerOption::default();
    option.set_topics(vec![topic]);
    option.set_consumer_group(group);
    let mut consumer = SimpleConsumer::new(option, client)?;
    consumer.start().await?;
    let all = FilterExpression::new(FilterType::Tag, "*");
    let mut acknowledged = 0;
    while acknowledged < count {
        for message in consumer.receive_with(topic, &all, 16, INVISIBLE).await? {
            println!(
                "received {} {} {} {:?} {}",
                String::from_utf8_lossy(message.body()),
                message.delivery_attempt(),
                message.tag().unwrap_or("-"),
                message.keys(),
                message.message_group().unwrap_or("-"),
            );
            if message.tag().is_none() || message.delivery_attempt() == 2 {
                consumer.ack(&message).await?;
                acknowledged += 1;
            }
        }
    }
    Ok(consumer.shutdown().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, topic, transactions, group] = &arguments[..] else { panic!("expected four arguments") };
    let mut client = ClientOption::default();
    client.set_access_url(address);
    client.set_long_polling_timeout(Duration::from_secs(10)); // the deadline of a call, of which a server needs five
    send_each_kind(client.clone(), topic).await?;
    tokio::time::timeout(TIMEOUT, receive(client.clone(), topic, group, 4)).await??;
    send_transactions(client.clone(), transactions).await?;
    tokio::time::timeout(TIMEOUT, receive(client, transactions, group, 2)).await??;
    println!("done");
    Ok(())
}
