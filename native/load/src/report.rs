//! The result of a load, as one line of JSON or as text.

use std::fmt::Write;

use crate::frame::escape;
use crate::tally::Tally;

const PERCENTILES: [f64; 4] = [50.0, 90.0, 99.0, 99.9];

pub struct Report {
    /// `send` or `pull`.
    pub mode: &'static str,
    /// What was loaded and how, in the order of the options.
    pub settings: Vec<(&'static str, Setting)>,
    pub tally: Tally,
    /// Measured time.
    pub seconds: f64,
    /// Time until consumers could read all messages; None without --readable.
    pub readable_seconds: Option<f64>,
    /// CPU time of this program in the measured time, or until the messages are readable.
    pub cpu_seconds: f64,
    /// The same of the broker's process; None without --pid.
    pub broker_cpu_seconds: Option<f64>,
}

pub enum Setting {
    Text(String),
    Number(f64),
}

impl Report {
    /// Return the rate in messages per second.
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 {
            self.tally.messages as f64 / self.seconds
        } else {
            0.0
        }
    }

    pub fn has_failed(&self) -> bool {
        self.tally.errors > 0 || self.tally.unexpected > 0 || !self.tally.failures.is_empty()
    }

    /// Return one line of JSON.
    pub fn json(&self) -> String {
        let tally = &self.tally;
        let mut line = format!("{{\"mode\":\"{}\"", self.mode);
        for (name, setting) in &self.settings {
            let value = match setting {
                Setting::Text(text) => quoted(text),
                Setting::Number(number) => number.to_string(),
            };
            write!(line, ",\"{name}\":{value}").expect("a String");
        }
        let codes: Vec<String> = tally.codes.iter().map(|(code, count)| format!("\"{code}\":{count}")).collect();
        let remarks: Vec<String> =
            tally.remarks.iter().map(|(code, text)| format!("\"{code}\":{}", quoted(text))).collect();
        let failures: Vec<String> = tally.failures.iter().map(|text| quoted(text)).collect();
        write!(
            line,
            ",\"messages\":{},\"total\":{},\"errors\":{},\"codes\":{{{}}},\"remarks\":{{{}}},\"unexpected\":{},\"failures\":[{}]",
            tally.messages,
            tally.total,
            tally.errors,
            codes.join(","),
            remarks.join(","),
            tally.unexpected,
            failures.join(",")
        )
        .expect("a String");
        match self.mode {
            "pull" => write!(
                line,
                ",\"bytes\":{},\"queues_at_end\":{},\"moved\":{}",
                tally.bytes, tally.queues_at_end, tally.moved
            ),
            _ => write!(line, ",\"unsent\":{}", tally.unsent),
        }
        .expect("a String");
        write!(line, ",\"seconds\":{:.3},\"rate\":{:.0},\"latency_us\":{{", self.seconds, self.rate())
            .expect("a String");
        for percent in PERCENTILES {
            let us = tally.latencies.percentile(percent) as f64 / 1e3;
            write!(line, "\"p{percent}\":{us:.1},").expect("a String");
        }
        write!(line, "\"max\":{:.1}}},\"cpu_seconds\":{:.3}", tally.latencies.max() as f64 / 1e3, self.cpu_seconds)
            .expect("a String");
        if let Some(seconds) = self.readable_seconds {
            let rate = tally.messages as f64 / seconds;
            write!(line, ",\"readable_seconds\":{seconds:.3},\"readable_rate\":{rate:.0}").expect("a String");
        }
        if let Some(seconds) = self.broker_cpu_seconds {
            write!(line, ",\"broker_cpu_seconds\":{seconds:.2},\"broker_cpu_us\":{:.3}", self.each_us(seconds))
                .expect("a String");
        }
        line.push('}');
        line
    }

    /// Return the report for people.
    pub fn text(&self) -> String {
        let tally = &self.tally;
        let requests = if self.mode == "pull" { "pulls" } else { "requests" };
        let mut text =
            format!("{} messages in {:.2} s: {} per second", tally.messages, self.seconds, thousands(self.rate()));
        if self.mode == "pull" {
            write!(text, ", {:.1} MB/s", tally.bytes as f64 / 1e6 / self.seconds.max(1e-9)).expect("a String");
        }
        write!(text, "\nlatency of {requests} in us:").expect("a String");
        for percent in PERCENTILES {
            write!(text, "  p{percent} {:.0}", tally.latencies.percentile(percent) as f64 / 1e3).expect("a String");
        }
        writeln!(text, "  max {:.0}", tally.latencies.max() as f64 / 1e3).expect("a String");
        let us = self.each_us(self.cpu_seconds);
        write!(text, "CPU of ariane-load: {:.2} s, {us:.2} us per message", self.cpu_seconds).expect("a String");
        if let Some(seconds) = self.broker_cpu_seconds {
            let us = self.each_us(seconds);
            write!(text, "; of the broker: {seconds:.2} s, {us:.2} us per message").expect("a String");
        }
        if let Some(seconds) = self.readable_seconds {
            let rate = thousands(tally.messages as f64 / seconds);
            write!(text, "\nreadable after {seconds:.2} s: {rate} per second").expect("a String");
        }
        if tally.total != tally.messages {
            write!(text, "\n{} messages in all, with those outside of the measured time", tally.total)
                .expect("a String");
        }
        if tally.unsent > 0 {
            write!(text, "\n{} messages were due and not sent: all requests in flight were pending", tally.unsent)
                .expect("a String");
        }
        if tally.moved > 0 {
            write!(
                text,
                "\n{} pulls began at an offset that is not one of their queue (PULL_OFFSET_MOVED)",
                tally.moved
            )
            .expect("a String");
        }
        for (code, remark) in &tally.remarks {
            write!(text, "\ncode {code}: {} {requests}; the first remark: {remark}", tally.codes[code])
                .expect("a String");
        }
        if tally.unexpected > 0 {
            write!(text, "\n{} frames that answer no request in flight", tally.unexpected).expect("a String");
        }
        for failure in &tally.failures {
            write!(text, "\nfailed: {failure}").expect("a String");
        }
        text
    }

    fn each_us(&self, seconds: f64) -> f64 {
        seconds * 1e6 / self.tally.messages.max(1) as f64
    }
}

fn quoted(text: &str) -> String {
    let mut bytes = vec![b'"'];
    escape(text, &mut bytes);
    bytes.push(b'"');
    String::from_utf8(bytes).expect("escaping keeps UTF-8")
}

fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut tally = Tally { messages: 1000, total: 1200, errors: 2, ..Tally::default() };
        tally.codes.extend([(0, 1200), (2, 2)]);
        tally.remarks.insert(2, "[\"BUSY\"]\n".to_owned());
        tally.latencies.record(1_500_000);
        let settings = vec![("topic", Setting::Text("T".to_owned())), ("queues", Setting::Number(4.0))];
        Report {
            mode: "send",
            settings,
            tally,
            seconds: 0.5,
            readable_seconds: Some(0.8),
            cpu_seconds: 0.001,
            broker_cpu_seconds: Some(0.02),
        }
    }

    #[test]
    fn the_line_of_json() {
        let expected = concat!(
            r#"{"mode":"send","topic":"T","queues":4,"messages":1000,"total":1200,"errors":2,"codes":{"0":1200,"2":2},"#,
            r#""remarks":{"2":"[\"BUSY\"]\u000a"},"unexpected":0,"failures":[],"unsent":0,"seconds":0.500,"rate":2000,"#,
            r#""latency_us":{"p50":1500.0,"p90":1500.0,"p99":1500.0,"p99.9":1500.0,"max":1500.0},"cpu_seconds":0.001,"#,
            r#""readable_seconds":0.800,"readable_rate":1250,"#,
            r#""broker_cpu_seconds":0.02,"broker_cpu_us":20.000}"#
        );
        assert_eq!(report().json(), expected);
    }

    #[test]
    fn the_text_names_errors() {
        let text = report().text();
        assert!(text.starts_with("1000 messages in 0.50 s: 2,000 per second\n"), "{text}");
        assert!(text.contains("code 2: 2 requests; the first remark: [\"BUSY\"]"), "{text}");
        assert!(text.contains("1200 messages in all"), "{text}");
        assert!(report().has_failed());
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(
            (thousands(12.0), thousands(1234567.0), thousands(123456.0)),
            ("12".into(), "1,234,567".into(), "123,456".into())
        );
    }
}
