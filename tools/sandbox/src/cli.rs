//! `codespace sandbox …`: what the helper does, by its arguments.

use std::{ffi::OsString, process::ExitCode};

use crate::probe;

const USAGE: &str = "usage: codespace sandbox probe [--json] [--as=UID:GID]
       codespace sandbox prepare --plan FILE|-
       codespace sandbox run --plan FILE|- -- COMMAND [ARGUMENT]...";

/// Runs the helper. To be called at the very start of `main`, before any runtime or
/// thread, with the arguments after the program's name, the first of which is `sandbox`.
#[must_use]
pub fn helper_main(args: &[OsString]) -> ExitCode {
    let words: Vec<&str> = args
        .iter()
        .map(|word| word.to_str().unwrap_or(""))
        .collect();
    match words.as_slice() {
        ["sandbox", "probe", rest @ ..] => run_probe(rest),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn run_probe(rest: &[&str]) -> ExitCode {
    let (mut json, mut run_as) = (false, None);
    for word in rest {
        match word.strip_prefix("--as=") {
            _ if *word == "--json" => json = true,
            Some(ids) => match ids.split_once(':').map(|(u, g)| (u.parse(), g.parse())) {
                Some((Ok(uid), Ok(gid))) => run_as = Some((uid, gid)),
                _ => return usage(),
            },
            None => return usage(),
        }
    }
    let features = probe::probe(run_as);
    if json {
        match serde_json::to_string(&features) {
            Ok(text) => println!("{text}"),
            Err(_) => return ExitCode::FAILURE,
        }
    } else {
        print!("{}", features.describe());
    }
    ExitCode::SUCCESS
}
