//! Generates the messages of RocketMQ 5 from descriptors (`messaging.binpb`), those of the Python package.

use std::path::Path;
use std::{env, fs, io};

use prost::Message;

const DESCRIPTORS: &str = "messaging.binpb"; // a copy: source distributions of this crate contain no other directory

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed={DESCRIPTORS}");
    if env::var_os("CARGO_FEATURE_GRPC").is_none() {
        return Ok(());
    }
    let file = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join(DESCRIPTORS);
    let descriptors = prost_types::FileDescriptorSet::decode(&fs::read(&file)?[..])?;
    // Maps in the order of their keys: a message is stored with the same properties each time.
    prost_build::Config::new().btree_map(["."]).bytes(["body"]).compile_fds(descriptors)
}
