//! Load program for RocketMQ brokers.
#![forbid(unsafe_code)]

pub mod histogram;
