//! Command lines. Errors name the option, its value and what is expected.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::*;

use crate::frame::Form;
use crate::send_template::{MessageShape, SEND_BATCH_MESSAGE, SEND_MESSAGE, SEND_MESSAGE_V2};
use crate::signing::Account;
use crate::slots::IN_FLIGHT_MAX;

pub const HELP: &str = "\
Load a RocketMQ broker with pipelined sends or pulls; print rate and latency.

Usage: ariane-load send --broker HOST:PORT [OPTIONS]
       ariane-load pull --broker HOST:PORT [OPTIONS]
       ariane-load respond --listen HOST:PORT

Options of send and pull:
  --broker HOST:PORT    Address of the broker (required)
  --topic TOPIC         Topic [ArianeLoad]
  --queues N            Queues of the topic that are used, from 0 [4]
  --connections N       Connections [1]
  --threads N           Threads [one for 8 connections, at most the cores]
  --header FORM         Form of headers: json, binary [json]
  --group GROUP         Producer or consumer group [ariane-load]
  --duration SECONDS    End of sending; send without --messages: [10]
  --timeout SECONDS     Longest time without an answer [30]; for --readable,
                        without a new message in a queue [600]
  --account KEY:SECRET  Sign requests with this access key and secret key
  --tls                 Encrypt connections, whatever the certificate
  --pid PID             Report the CPU time of this process (the broker's), too
  --latency-file FILE   Write the histogram: microseconds and count of a bucket
  --json                Print one line of JSON

Options of send:
  --messages N          Measure so many messages instead of a duration
  --size BYTES          Size of a body [128]
  --in-flight N         Requests in flight on each connection [128]
  --code CODE           10, 310 (SEND_MESSAGE_V2) or 320 (batches) [310]
  --batch N             Messages of a request with --code 320 [32]
  --rate N              Messages per second in all, sent when they are due;
                        latency counts from then [as many as possible]
  --warm-up SECONDS     Time before the measurement [0]
  --keys                Give each message a key of its own
  --tag TAG             Tag of the messages
  --create-topic        Create the topic with --queues queues before
  --readable            With --messages: wait until consumers can read all
                        messages, report that time and count CPU until then

Options of pull:
  --from OFFSET         First offset of each queue, or first [first]
  --batch N             Most messages of an answer [32]
  --tag EXPRESSION      Subscription: A || B [*]
  --repeat              Begin again at the end, until --duration has passed
  --expect N            Fail unless so many messages were read
  --crc                 Check the CRC of each body and all lengths

`respond` accepts all sends and stores nothing: it shows the load program's
own limit. Exit status: 0, 1 after an error of the broker, 2 wrong usage.

Examples:
  ariane-load send --broker 127.0.0.1:10911 --create-topic --warm-up 2
  ariane-load send --broker 127.0.0.1:10911 --rate 50000 --connections 4
  ariane-load pull --broker 127.0.0.1:10911 --connections 2 --crc
";

/// A Java broker creates the files of 10,000 queues for minutes before the second message of the first one is readable.
const READABLE_TIMEOUT: Duration = Duration::from_secs(600);

pub enum Command {
    Help,
    Version,
    Send(SendOptions),
    Pull(PullOptions),
    Respond { listen: String },
}

/// Options of both loads.
pub struct CommonOptions {
    pub broker: String,
    pub topic: String,
    pub queues: u32,
    pub connections: usize,
    pub threads: usize,
    pub form: Form,
    pub group: String,
    pub duration: Option<Duration>,
    pub timeout: Duration,
    pub account: Option<Account>,
    pub tls: bool,
    pub pid: Option<u32>,
    pub latency_file: Option<PathBuf>,
    pub json: bool,
}

pub struct SendOptions {
    pub common: CommonOptions,
    pub shape: MessageShape,
    pub messages: Option<u64>,
    pub in_flight: usize,
    /// Messages per second.
    pub rate: Option<f64>,
    pub warm_up: Duration,
    pub create_topic: bool,
    /// Wait until consumers can read all messages, at most for this time for the next one of a queue.
    pub readable: Option<Duration>,
}

pub struct PullOptions {
    pub common: CommonOptions,
    /// Offset to begin at; None for the first of each queue.
    pub from: Option<i64>,
    pub batch: u32,
    pub expression: String,
    pub repeat: bool,
    pub expect: Option<u64>,
    pub check_bodies: bool,
}

/// Everything that was typed; checked when all of it is there.
#[derive(Default)]
struct Typed {
    broker: Option<String>,
    listen: Option<String>,
    topic: Option<String>,
    queues: Option<u32>,
    connections: Option<usize>,
    threads: Option<usize>,
    header: Option<String>,
    group: Option<String>,
    duration: Option<Duration>,
    timeout: Option<Duration>,
    account: Option<Account>,
    tls: bool,
    pid: Option<u32>,
    latency_file: Option<PathBuf>,
    json: bool,
    messages: Option<u64>,
    size: Option<usize>,
    in_flight: Option<usize>,
    code: Option<i16>,
    batch: Option<u32>,
    rate: Option<f64>,
    warm_up: Option<Duration>,
    keys: bool,
    tag: Option<String>,
    create_topic: bool,
    readable: bool,
    from: Option<String>,
    repeat: bool,
    expect: Option<u64>,
    crc: bool,
}

const COMMON: &[&str] = &[
    "broker",
    "topic",
    "queues",
    "connections",
    "threads",
    "header",
    "group",
    "duration",
    "timeout",
    "account",
    "tls",
    "pid",
    "latency-file",
    "json",
];
const SEND: &[&str] =
    &["messages", "size", "in-flight", "code", "batch", "rate", "warm-up", "keys", "tag", "create-topic", "readable"];
const PULL: &[&str] = &["from", "batch", "tag", "repeat", "expect", "crc"];

/// Parse the arguments after the name of the program.
pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(arguments.into_iter().map(std::ffi::OsString::from));
    let mut mode: Option<String> = None;
    let mut typed = Typed::default();
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("version") => return Ok(Command::Version),
            Value(value) if mode.is_none() => mode = Some(value.to_string_lossy().into_owned()),
            Long(name) => {
                let name = name.to_owned();
                check_mode(mode.as_deref(), &name)?;
                typed.take(&name, &mut parser)?;
            }
            other => return Err(format!("{}; see ariane-load --help", other.unexpected())),
        }
    }
    match mode.as_deref() {
        Some("send") => typed.send().map(Command::Send),
        Some("pull") => typed.pull().map(Command::Pull),
        Some("respond") => typed.listen.map(|listen| Command::Respond { listen }).ok_or_else(|| missing("listen")),
        Some(other) => Err(format!("Invalid command '{other}': expected send, pull or respond.")),
        None => Err("Missing command: expected send, pull or respond; see ariane-load --help.".to_owned()),
    }
}

fn check_mode(mode: Option<&str>, name: &str) -> Result<(), String> {
    let is_valid = match mode {
        Some("send") => COMMON.contains(&name) || SEND.contains(&name),
        Some("pull") => COMMON.contains(&name) || PULL.contains(&name),
        Some("respond") => name == "listen",
        Some(other) => return Err(format!("Invalid command '{other}': expected send, pull or respond.")),
        None => return Err(format!("Missing command before --{name}: expected send, pull or respond.")),
    };
    let mode = mode.unwrap_or_default();
    is_valid.then_some(()).ok_or_else(|| format!("Unknown option --{name} of {mode}; see ariane-load --help."))
}

impl Typed {
    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<(), String> {
        match name {
            "json" => self.json = true,
            "tls" => self.tls = true,
            "keys" => self.keys = true,
            "create-topic" => self.create_topic = true,
            "readable" => self.readable = true,
            "repeat" => self.repeat = true,
            "crc" => self.crc = true,
            _ => {
                let value = parser.value().map_err(|_| format!("Option --{name} needs a value."))?;
                self.take_value(name, &value.to_string_lossy())?;
            }
        }
        Ok(())
    }

    fn take_value(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "broker" => self.broker = Some(value.to_owned()),
            "listen" => self.listen = Some(value.to_owned()),
            "topic" => self.topic = Some(value.to_owned()),
            "queues" => self.queues = Some(within(name, value, 1, 1_000_000)?),
            "connections" => self.connections = Some(within(name, value, 1, 10_000)?),
            "threads" => self.threads = Some(within(name, value, 1, 1_000)?),
            "header" => self.header = Some(value.to_owned()),
            "group" => self.group = Some(value.to_owned()),
            "duration" => self.duration = Some(seconds(name, value)?),
            "timeout" => self.timeout = Some(seconds(name, value)?),
            "account" => {
                self.account = Some(Account::parse(value).ok_or("Invalid --account: expected ACCESS_KEY:SECRET_KEY.")?)
            }
            "pid" => self.pid = Some(within(name, value, 1, u32::MAX)?),
            "latency-file" => self.latency_file = Some(value.into()),
            "messages" => self.messages = Some(within(name, value, 1, u64::MAX >> 20)?),
            "size" => self.size = Some(within(name, value, 0, 4 << 20)?),
            "in-flight" => self.in_flight = Some(within(name, value, 1, IN_FLIGHT_MAX)?),
            "code" => self.code = Some(within(name, value, SEND_MESSAGE, SEND_BATCH_MESSAGE)?),
            "batch" => self.batch = Some(within(name, value, 1, 10_000)?),
            "rate" => self.rate = Some(within(name, value, 1.0, 1e9)?),
            "warm-up" => self.warm_up = Some(seconds(name, value)?),
            "tag" => self.tag = Some(value.to_owned()),
            "from" => self.from = Some(value.to_owned()),
            "expect" => self.expect = Some(within(name, value, 0, u64::MAX)?),
            _ => unreachable!("check_mode accepts only these options"),
        }
        Ok(())
    }

    fn common(&mut self, duration: Option<Duration>) -> Result<CommonOptions, String> {
        let form = match self.header.as_deref() {
            None | Some("json") => Form::Json,
            Some("binary") => Form::Binary,
            Some(other) => return Err(invalid("header", other, "json or binary")),
        };
        let connections = self.connections.unwrap_or(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(CommonOptions {
            broker: self.broker.take().ok_or_else(|| missing("broker"))?,
            topic: self.topic.take().unwrap_or_else(|| "ArianeLoad".to_owned()),
            queues: self.queues.unwrap_or(4),
            connections,
            threads: self.threads.unwrap_or_else(|| connections.div_ceil(8).min(cores)).min(connections),
            form,
            group: self.group.take().unwrap_or_else(|| "ariane-load".to_owned()),
            duration: self.duration.or(duration),
            timeout: self.timeout.unwrap_or(Duration::from_secs(30)),
            account: self.account.take(),
            tls: self.tls,
            pid: self.pid,
            latency_file: self.latency_file.take(),
            json: self.json,
        })
    }

    fn send(mut self) -> Result<SendOptions, String> {
        let code = self.code.unwrap_or(SEND_MESSAGE_V2);
        if ![SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE].contains(&code) {
            return Err(invalid("code", code, "10, 310 or 320"));
        }
        if code != SEND_BATCH_MESSAGE && self.batch.is_some() {
            return Err("Option --batch needs --code 320.".to_owned());
        }
        let batch = if code == SEND_BATCH_MESSAGE { self.batch.unwrap_or(32) as usize } else { 1 };
        if self.messages.is_some() && self.duration.is_some() {
            return Err("Options --messages and --duration exclude each other.".to_owned());
        }
        if self.readable && self.messages.is_none() {
            return Err("Option --readable needs --messages.".to_owned());
        }
        if let Some(messages) = self.messages.filter(|messages| messages % batch as u64 != 0) {
            return Err(invalid("messages", messages, &format!("a multiple of --batch {batch}")));
        }
        let duration = self.messages.is_none().then_some(Duration::from_secs(10));
        let common = self.common(duration)?;
        let shape = MessageShape {
            form: common.form,
            code,
            group: common.group.clone(),
            topic: common.topic.clone(),
            queues: common.queues,
            size: self.size.unwrap_or(128),
            batch,
            with_keys: self.keys,
            tag: self.tag,
            account: common.account.clone(),
        };
        Ok(SendOptions {
            common,
            shape,
            messages: self.messages,
            in_flight: self.in_flight.unwrap_or(128),
            rate: self.rate,
            warm_up: self.warm_up.unwrap_or_default(),
            create_topic: self.create_topic,
            readable: self.readable.then(|| self.timeout.unwrap_or(READABLE_TIMEOUT)),
        })
    }

    fn pull(mut self) -> Result<PullOptions, String> {
        if self.repeat && self.duration.is_none() {
            return Err("Option --repeat needs --duration.".to_owned());
        }
        let common = self.common(None)?;
        if common.connections > common.queues as usize {
            let expected = format!("at most one for each of the {} queues", common.queues);
            return Err(invalid("connections", common.connections, &expected));
        }
        let from = match self.from.as_deref() {
            None | Some("first") => None,
            Some(offset) => Some(offset.parse().map_err(|_| invalid("from", offset, "an offset or first"))?),
        };
        Ok(PullOptions {
            common,
            from,
            batch: self.batch.unwrap_or(32),
            expression: self.tag.unwrap_or_else(|| "*".to_owned()),
            repeat: self.repeat,
            expect: self.expect,
            check_bodies: self.crc,
        })
    }
}

fn within<T: FromStr + PartialOrd + Display>(name: &str, value: &str, least: T, most: T) -> Result<T, String> {
    let number = value.parse().ok().filter(|number| (&least..=&most).contains(&number));
    number.ok_or_else(|| invalid(name, value, &format!("a number from {least} to {most}")))
}

fn seconds(name: &str, value: &str) -> Result<Duration, String> {
    within(name, value, 0.0, 1e6).map(Duration::from_secs_f64)
}

fn invalid(name: &str, value: impl Display, expected: &str) -> String {
    format!("Invalid --{name} '{value}': expected {expected}.")
}

fn missing(name: &str) -> String {
    format!("Missing option --{name} HOST:PORT.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_ascii_whitespace().map(str::to_owned))
    }

    fn fault(line: &str) -> String {
        parsed(line).err().unwrap_or_else(|| panic!("{line} is accepted"))
    }

    #[test]
    fn defaults_of_send() {
        let Ok(Command::Send(options)) = parsed("send --broker h:1") else { panic!("a send load") };
        assert_eq!(
            (options.shape.code, options.shape.size, options.shape.batch, options.in_flight),
            (310, 128, 1, 128)
        );
        assert_eq!((options.common.queues, options.common.threads, options.common.form), (4, 1, Form::Json));
        assert_eq!((options.common.duration, options.messages), (Some(Duration::from_secs(10)), None));
    }

    #[test]
    fn options_of_pull() {
        let line = "pull --broker h:1 --queues 16 --connections 2 --from 7 --tag A --crc --expect 5 --header binary";
        let Ok(Command::Pull(options)) = parsed(line) else { panic!("a pull load") };
        assert_eq!((options.from, options.expression.as_str(), options.expect), (Some(7), "A", Some(5)));
        assert!(options.check_bodies && options.common.duration.is_none() && options.common.form == Form::Binary);
    }

    #[test]
    fn faults_name_option_and_value() {
        for (line, expected) in [
            ("", "Missing command"),
            ("push", "Invalid command 'push'"),
            ("--broker h:1", "Missing command before --broker"),
            ("send", "Missing option --broker"),
            ("respond", "Missing option --listen"),
            ("send --broker h:1 --queues 0", "Invalid --queues '0': expected a number from 1"),
            ("send --broker h:1 --code 11", "Invalid --code '11': expected 10, 310 or 320."),
            ("send --broker h:1 --batch 5", "--batch needs --code 320"),
            ("send --broker h:1 --code 320 --batch 5 --messages 12", "expected a multiple of --batch 5"),
            ("send --broker h:1 --messages 5 --duration 5", "exclude each other"),
            ("send --broker h:1 --header xml", "Invalid --header 'xml'"),
            ("send --broker h:1 --account key", "Invalid --account: expected ACCESS_KEY:SECRET_KEY."),
            ("send --broker h:1 --from 5", "Unknown option --from of send"),
            ("send --broker h:1 extra", "extra"),
            ("send --broker", "Option --broker needs a value."),
            ("pull --broker h:1 --connections 5", "Invalid --connections '5'"),
            ("pull --broker h:1 --from last", "Invalid --from 'last'"),
            ("send --broker h:1 --readable", "--readable needs --messages"),
            ("pull --broker h:1 --repeat", "--repeat needs --duration"),
        ] {
            assert!(fault(line).contains(expected), "{line}: {}", fault(line));
        }
    }

    #[test]
    fn help_fits_a_terminal() {
        assert!(HELP.lines().all(|line| line.len() <= 80));
        for name in COMMON.iter().chain(SEND).chain(PULL) {
            assert!(HELP.contains(&format!("--{name}")), "{name}");
        }
    }
}
