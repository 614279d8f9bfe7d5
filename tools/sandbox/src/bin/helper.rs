//! The helper as a program of its own, for the tests of this crate.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    codespace_sandbox::helper_main(&args)
}
