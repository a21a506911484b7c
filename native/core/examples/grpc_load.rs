//! A load of clients of RocketMQ 5: sends, or receive calls with an acknowledgement for each message.
//!
//! ```sh
//! cargo run --release -p ariane-native --features grpc --example grpc_load -- send 127.0.0.1:8081 Load 64 10 128 1
//! cargo run --release -p ariane-native --features grpc --example grpc_load -- consume 127.0.0.1:8081 Load 4 10
//! ```
//!
//! Arguments: kind, address, topic, calls in flight (of consume: receive calls), seconds, bytes of a body, connections. Prints
//! JSON: messages, seconds, rate, latencies of a send or an acknowledgement in µs, and statuses other than OK.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use ariane_native::grpc::calls::framed;
use ariane_native::grpc::messages as api;
use bytes::Bytes;
use h2::client::SendRequest;
use h2::RecvStream;
use http::{Method, Request};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::task::{spawn_local, JoinHandle, LocalSet};

const OK: i32 = 20_000;
const NO_MESSAGE: i32 = 40_401;
const BATCH: i32 = 32;

type Failure = Box<dyn Error>;

#[derive(Default)]
struct Tally {
    messages: Cell<u64>,
    latencies_us: RefCell<Vec<u32>>,
    statuses: RefCell<BTreeMap<i32, u64>>, // other than OK
}

impl Tally {
    fn count(&self, code: i32, started: Instant) {
        if code == OK {
            self.messages.set(self.messages.get() + 1);
            self.latencies_us.borrow_mut().push(started.elapsed().as_micros() as u32);
        } else {
            *self.statuses.borrow_mut().entry(code).or_default() += 1;
        }
    }
}

#[derive(Clone)]
struct Client {
    requests: SendRequest<Bytes>,
    tally: Rc<Tally>,
    topic: Rc<str>,
    until: Instant,
}

fn resource(name: &str) -> Option<api::Resource> {
    Some(api::Resource { name: name.to_owned(), ..Default::default() })
}

fn status(status: Option<api::Status>) -> i32 {
    status.map_or(0, |status| status.code)
}

impl Client {
    async fn call(&mut self, name: &str, message: &impl prost::Message) -> Result<RecvStream, Failure> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://load/apache.rocketmq.v2.MessagingService/{name}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "30S")
            .header("x-mq-client-id", "load@1@1")
            .header("x-mq-language", "RUST")
            .header("x-mq-client-version", "5.0.0")
            .header("x-mq-protocol", "v2")
            .header("x-mq-date-time", "20261125T000000Z")
            .body(())?;
        std::future::poll_fn(|cx| self.requests.poll_ready(cx)).await?;
        let (response, mut body) = self.requests.send_request(request, false)?;
        body.send_data(framed(&message.encode_to_vec()), true)?;
        Ok(response.await?.into_body())
    }

    async fn unary<R: prost::Message + Default>(
        &mut self,
        name: &str,
        message: &impl prost::Message,
    ) -> Result<R, Failure> {
        let mut body = self.call(name, message).await?;
        let mut data = Vec::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            data.extend_from_slice(&chunk);
        }
        body.trailers().await?;
        Ok(R::decode(data.get(5..).ok_or("a call without a reply")?)?)
    }

    async fn send(mut self, number: usize, size: usize) -> Result<(), Failure> {
        let mut count = 0;
        while Instant::now() < self.until {
            count += 1;
            let started = Instant::now();
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
            let born = prost_types::Timestamp { seconds: now.as_secs() as i64, nanos: now.subsec_nanos() as i32 };
            let message = api::Message {
                topic: resource(&self.topic),
                body: Bytes::from(vec![b'x'; size]),
                system_properties: Some(api::SystemProperties {
                    message_id: format!("01{number:08X}{count:024X}"),
                    message_type: 1,
                    born_timestamp: Some(born),
                    born_host: "load".to_owned(),
                    body_encoding: 1,
                    ..Default::default()
                }),
                ..Default::default()
            };
            let reply: api::SendMessageResponse =
                self.unary("SendMessage", &api::SendMessageRequest { messages: vec![message] }).await?;
            self.tally.count(status(reply.status), started);
        }
        Ok(())
    }

    async fn consume(mut self) -> Result<(), Failure> {
        while Instant::now() < self.until {
            let queue = api::MessageQueue { topic: resource(&self.topic), id: -1, ..Default::default() };
            let request = api::ReceiveMessageRequest {
                group: resource("load"),
                message_queue: Some(queue),
                batch_size: BATCH,
                invisible_duration: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
                long_polling_timeout: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
                ..Default::default()
            };
            for message in self.receive(&request).await? {
                let system = message.system_properties.unwrap_or_default();
                let entry = api::AckMessageEntry {
                    message_id: system.message_id,
                    receipt_handle: system.receipt_handle.unwrap_or_default(),
                    ..Default::default()
                };
                let request = api::AckMessageRequest {
                    group: resource("load"),
                    topic: resource(&self.topic),
                    entries: vec![entry],
                };
                let started = Instant::now();
                let reply: api::AckMessageResponse = self.unary("AckMessage", &request).await?;
                self.tally.count(status(reply.status), started);
            }
        }
        Ok(())
    }

    async fn receive(&mut self, request: &api::ReceiveMessageRequest) -> Result<Vec<api::Message>, Failure> {
        use api::receive_message_response::Content;
        let mut body = self.call("ReceiveMessage", request).await?;
        let (mut data, mut messages) = (Vec::new(), Vec::new());
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            data.extend_from_slice(&chunk);
        }
        let mut rest = &data[..];
        while let Some((prefix, following)) = rest.split_first_chunk::<5>() {
            let size = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
            let (reply, following) = following.split_at_checked(size).ok_or("a part of a reply")?;
            rest = following;
            match api::ReceiveMessageResponse::decode(reply)?.content {
                Some(Content::Message(message)) => messages.push(message),
                Some(Content::Status(status)) if status.code != OK && status.code != NO_MESSAGE => {
                    self.tally.count(status.code, Instant::now());
                }
                _ => {}
            }
        }
        Ok(messages)
    }
}

async fn connect(address: &str) -> Result<SendRequest<Bytes>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(8 << 20);
    let (requests, connection) = builder.handshake(stream).await?;
    spawn_local(async move {
        if let Err(error) = connection.await {
            eprintln!("connection: {error}");
        }
    });
    Ok(requests)
}

async fn run(arguments: &[String]) -> Result<(), Failure> {
    let number = |index: usize, default: usize| arguments.get(index).map_or(Ok(default), |text| text.parse());
    let [kind, address, topic] = arguments.first_chunk::<3>().ok_or("expected kind, address and topic")?;
    let (in_flight, seconds, size, connections) = (number(3, 64)?, number(4, 10)?, number(5, 128)?, number(6, 1)?);
    let (tally, started) = (Rc::new(Tally::default()), Instant::now());
    let until = started + Duration::from_secs(seconds as u64);
    let mut tasks: Vec<JoinHandle<Result<(), String>>> = Vec::new();
    for connection in 0..connections {
        let client =
            Client { requests: connect(address).await?, tally: Rc::clone(&tally), topic: topic.as_str().into(), until };
        for call in 0..in_flight.div_ceil(connections) {
            let (client, number) = (client.clone(), connection * in_flight + call);
            let is_send = kind == "send";
            tasks.push(spawn_local(async move {
                let done = if is_send { client.send(number, size).await } else { client.consume().await };
                done.map_err(|error| error.to_string())
            }));
        }
    }
    for task in tasks {
        task.await??;
    }
    let elapsed = started.elapsed().as_secs_f64();
    let mut latencies = tally.latencies_us.borrow_mut();
    latencies.sort_unstable();
    let at = |share: f64| latencies.get((latencies.len() as f64 * share) as usize).copied().unwrap_or(0);
    let statuses: Vec<String> = tally.statuses.borrow().iter().map(|(code, n)| format!("\"{code}\": {n}")).collect();
    println!(
        "{{\"messages\": {}, \"seconds\": {elapsed:.3}, \"rate\": {:.0}, \"p50_us\": {}, \"p99_us\": {}, \"statuses\": {{{}}}}}",
        tally.messages.get(),
        tally.messages.get() as f64 / elapsed,
        at(0.5),
        at(0.99),
        statuses.join(", ")
    );
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    LocalSet::new().block_on(&runtime, run(&arguments))
}
