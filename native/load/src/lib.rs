//! Load program for RocketMQ brokers.
//!
//! ```text
//! main ─ options ─→ load ─ one thread for several connections ─→ send, pull ─→ tally ─→ report
//!                                    send_template, frame, records, slots, connection, tls, ready
//! ```
#![forbid(unsafe_code)]

pub mod admin;
pub mod connection;
pub mod cpu;
pub mod frame;
pub mod histogram;
pub mod load;
pub mod options;
pub mod pull;
pub mod ready;
pub mod records;
pub mod report;
pub mod responder;
pub mod send;
pub mod send_template;
pub mod signing;
pub mod slots;
pub mod tally;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
pub mod tls;
