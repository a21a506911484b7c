//! Single requests before a load: creation of a topic, the first offsets of its queues.

use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::frame::{Form, Frame};
use crate::options::CommonOptions;
use crate::signing::{self, Account};

const UPDATE_AND_CREATE_TOPIC: i16 = 17;
const GET_MAX_OFFSET: i16 = 30;
const GET_MIN_OFFSET: i16 = 31;
const READ_AND_WRITE: &str = "6";

/// A connection that waits for each answer.
pub struct AdminConnection {
    connection: Connection,
    timeout: Duration,
    opaque: i32,
    account: Option<Account>,
}

impl AdminConnection {
    pub fn open(options: &CommonOptions) -> Result<AdminConnection, String> {
        let connection = Connection::open_blocking(&options.broker, options.tls, Some(options.timeout))?;
        let account = options.account.clone();
        Ok(AdminConnection { connection, timeout: options.timeout, opaque: 0, account })
    }

    /// Create a topic with so many queues, or change the number of its queues.
    pub fn create_topic(&mut self, topic: &str, queues: u32) -> Result<(), String> {
        let queues = queues.to_string();
        let fields = [
            ("topic", topic),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", &queues),
            ("writeQueueNums", &queues),
            ("perm", READ_AND_WRITE),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ];
        self.request(UPDATE_AND_CREATE_TOPIC, &fields, |_| Ok(()))
            .map_err(|fault| format!("cannot create topic {topic}: {fault}"))
    }

    /// Return the first offset of a queue.
    pub fn min_offset(&mut self, topic: &str, queue: u32) -> Result<i64, String> {
        self.offset(GET_MIN_OFFSET, topic, queue).map_err(|fault| format!("cannot get the first offset {fault}"))
    }

    /// Return the offset after the last message of a queue that consumers can read.
    pub fn max_offset(&mut self, topic: &str, queue: u32) -> Result<i64, String> {
        self.offset(GET_MAX_OFFSET, topic, queue).map_err(|fault| format!("cannot get the end {fault}"))
    }

    fn offset(&mut self, code: i16, topic: &str, queue: u32) -> Result<i64, String> {
        let number = queue.to_string();
        let offset =
            |frame: &Frame<'_>| frame.number("offset").ok_or_else(|| "the answer has no number offset".to_owned());
        self.request(code, &[("topic", topic), ("queueId", &number)], offset)
            .map_err(|fault| format!("of queue {queue} of {topic}: {fault}"))
    }

    fn request<T>(
        &mut self,
        code: i16,
        fields: &[(&str, &str)],
        take: impl Fn(&Frame<'_>) -> Result<T, String>,
    ) -> Result<T, String> {
        self.opaque += 1;
        let request = signing::encode(Form::Json, code, self.opaque, fields, self.account.as_ref()).bytes;
        self.connection.output.extend_from_slice(&request);
        self.connection.flush()?;
        let sent = Instant::now();
        loop {
            while let Some(frame) = self.connection.input.next_frame()? {
                let head = frame.head(&mut 0)?;
                if head.opaque != self.opaque {
                    continue; // a request of the broker
                }
                if head.code != 0 {
                    return Err(format!("code {}: {}", head.code, frame.remark().unwrap_or_default()));
                }
                return take(&frame);
            }
            if sent.elapsed() >= self.timeout {
                return Err(format!("no answer to request {code} for {} s", self.timeout.as_secs_f64()));
            }
            self.connection.read()?;
        }
    }
}
