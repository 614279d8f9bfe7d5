//! Generates client and server from the proto file. protox is a protobuf compiler in Rust:
//! no `protoc` has to be on the machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto/worker.proto");
    let files = protox::compile(["worker.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_transport(false)
        // Contents go from the socket's buffer to their owner without a copy between.
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
