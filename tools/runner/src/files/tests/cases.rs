//! Every case of `tests/cases/patch.json`, through the transaction.

use std::{os::unix::fs::PermissionsExt, path::Path};

use base64::Engine as _;
use codespace_patch::Patch;
use serde_json::Value;

use super::{Bench, job, keep};
use crate::files::patch_refusal;

fn bytes(value: &Value) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD
        .decode(value.as_str().unwrap())
        .unwrap()
}

fn pairs<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value
        .get(key)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn set_up(bench: &Bench, case: &Value) {
    let setup = &case["setup"];
    for (path, text) in pairs(case, "files") {
        write(&bench.root.join(path), text.as_str().unwrap().as_bytes());
    }
    for (path, data) in pairs(setup, "files_b64").chain(pairs(case, "files_b64")) {
        write(&bench.root.join(path), &bytes(data));
    }
    for dir in setup["dirs"].as_array().into_iter().flatten() {
        std::fs::create_dir_all(bench.root.join(dir.as_str().unwrap())).unwrap();
    }
    let real = bench.root.to_str().unwrap();
    for (path, target) in pairs(setup, "symlinks") {
        let path = bench.root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target.as_str().unwrap().replace("{{ROOT}}", real), path)
            .unwrap();
    }
    for fifo in setup["fifos"].as_array().into_iter().flatten() {
        let path = bench.root.join(fifo.as_str().unwrap());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
    }
    for (path, mode) in pairs(setup, "modes") {
        let mode = u32::from_str_radix(mode.as_str().unwrap(), 8).unwrap();
        std::fs::set_permissions(bench.root.join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
}

fn run(case: &Value) -> Result<(), String> {
    let bench = Bench::new();
    set_up(&bench, case);
    let before = bench.tree();
    let text = case["patch"]
        .as_str()
        .unwrap()
        .replace("{{ROOT}}", bench.root.to_str().unwrap());
    let outcome = Patch::parse(&text)
        .map_err(|error| patch_refusal(&error))
        .and_then(|patch| {
            let mut job = job("*** Begin Patch\n*** Delete File: x\n*** End Patch\n");
            job.patch = patch.into();
            bench.files.apply(job)
        });
    let expect = &case["expect"];
    match outcome {
        Ok(applied) => {
            let status = applied.status.as_str();
            keep(applied);
            if expect["status"].as_str() != Some(status) {
                return Err(format!("{status}, wanted {expect}"));
            }
        }
        Err(error) => {
            let code = error.code().as_str();
            let any = expect["error_any"].as_array().into_iter().flatten();
            if expect["error"].as_str() != Some(code)
                && !any.clone().any(|one| one.as_str() == Some(code))
            {
                return Err(format!("{error}, wanted {expect}"));
            }
            if error
                .body()
                .to_string()
                .contains(bench.root.to_str().unwrap())
            {
                return Err(format!("tells a host path: {error}"));
            }
            if bench.tree() != before {
                return Err("refused, and changed something".into());
            }
        }
    }
    if bench.journal_count() > 0 || bench.tree().keys().any(|path| path.contains(".codespace-")) {
        return Err("left something behind".into());
    }
    check_files(&bench, expect)
}

fn check_files(bench: &Bench, expect: &Value) -> Result<(), String> {
    let text = pairs(expect, "files")
        .map(|(path, text)| (path, text.as_str().map(|text| text.as_bytes().to_vec())));
    let data = pairs(expect, "files_b64").map(|(path, data)| (path, Some(bytes(data))));
    for (path, want) in text.chain(data) {
        let is = std::fs::read(bench.root.join(path)).ok();
        if is != want {
            return Err(format!("{path}: {is:?}, wanted {want:?}"));
        }
    }
    for (path, mode) in pairs(expect, "modes") {
        let is = std::fs::metadata(bench.root.join(path))
            .map_err(|error| error.to_string())?
            .permissions()
            .mode();
        let want = u32::from_str_radix(mode.as_str().unwrap(), 8).unwrap();
        if is & 0o7777 != want {
            return Err(format!("{path}: mode {is:o}, wanted {want:o}"));
        }
    }
    Ok(())
}

#[test]
fn every_shared_case_has_its_right_result() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/patch.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let failed: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            run(case)
                .err()
                .map(|why| format!("{} {}: {why}", case["id"], case["title"]))
        })
        .collect();
    assert!(cases.len() > 50);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
