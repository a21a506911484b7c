//! The interface of `tls`, of a program that was built without it.

use std::net::TcpStream;

use crate::connection::Input;

pub enum TlsSession {}

impl TlsSession {
    pub fn open(_: &mut TcpStream, _: &str) -> Result<TlsSession, String> {
        Err("--tls: built without TLS; build with cargo build --release -p ariane-load --features tls".to_owned())
    }

    pub fn description(&self) -> String {
        match *self {}
    }

    pub fn is_blocked(&self) -> bool {
        match *self {}
    }

    pub fn write(&mut self, _: &mut TcpStream, _: &[u8]) -> std::io::Result<usize> {
        match *self {}
    }

    pub fn read(&mut self, _: &mut TcpStream, _: &mut Input) -> std::io::Result<usize> {
        match *self {}
    }
}
