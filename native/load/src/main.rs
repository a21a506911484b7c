//! `ariane-load`: loads a RocketMQ broker with pipelined sends or pulls.
#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::process::ExitCode;

use ariane_load::options::{parse, Command, HELP};
use ariane_load::report::Report;
use ariane_load::{load, responder};

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    match parse(arguments) {
        Ok(Command::Help) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Ok(Command::Version) => {
            println!("ariane-load {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Ok(Command::Send(options)) => print_report(load::send(&options), options.common.json),
        Ok(Command::Pull(options)) => print_report(load::pull(&options), options.common.json),
        Ok(Command::Respond { listen }) => respond(&listen),
        Err(fault) => {
            eprintln!("ariane-load: {fault}");
            ExitCode::from(2)
        }
    }
}

fn print_report(report: Result<Report, String>, json: bool) -> ExitCode {
    match report {
        Ok(report) => {
            println!("{}", if json { report.json() } else { report.text() });
            ExitCode::from(u8::from(report.has_failed()))
        }
        Err(fault) => {
            eprintln!("ariane-load: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn respond(listen: &str) -> ExitCode {
    let served = TcpListener::bind(listen).and_then(|listener| {
        println!("listening on {}", listener.local_addr()?);
        responder::serve(&listener)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ariane-load: cannot listen on {listen}: {error}");
            ExitCode::FAILURE
        }
    }
}
