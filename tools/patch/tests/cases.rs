//! Every case of the shared list.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use codespace_patch::PlanError;
use common::{Memory, Refused, Thing, name};
use serde_json::Value;

/// Just enough base64 for the list.
fn base64(text: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bits, mut held, mut out) = (0u32, 0, Vec::new());
    for c in text.bytes().filter(|c| *c != b'=') {
        bits = bits << 6 | u32::from(digit(c));
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

fn entries(value: &Value) -> Vec<(String, Value)> {
    value
        .as_object()
        .map(|map| {
            map.iter()
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        })
        .unwrap_or_default()
}

fn strings(value: &Value) -> Vec<String> {
    value
        .as_array()
        .map(|list| {
            list.iter()
                .filter_map(|item| item.as_str().map(str::to_owned))
                .collect()
        })
        .unwrap_or_default()
}

fn run(case: &Value) {
    let id = case["id"].as_str().unwrap();
    let mut tree = Memory::default();
    let setup = &case["setup"];
    for (path, text) in entries(&case["files"]) {
        tree.things.insert(
            path,
            Thing::File(text.as_str().unwrap().as_bytes().to_vec()),
        );
    }
    for (path, text) in entries(&setup["files_b64"]) {
        tree.things
            .insert(path, Thing::File(base64(text.as_str().unwrap())));
    }
    tree.things.extend(
        entries(&setup["symlinks"])
            .into_iter()
            .map(|(path, _)| (path, Thing::Link)),
    );
    tree.things.extend(
        strings(&setup["fifos"])
            .into_iter()
            .map(|path| (path, Thing::Special)),
    );
    tree.things.extend(
        strings(&setup["dirs"])
            .into_iter()
            .map(|path| (path, Thing::Directory)),
    );
    let before = tree.things.clone();
    let text = case["patch"]
        .as_str()
        .unwrap()
        .replace("{{ROOT}}", "/root-dir");
    let expect = &case["expect"];
    let result = tree.plan(&text);
    if expect["status"].is_string() {
        let plan = result.unwrap_or_else(|error| panic!("{id}: {error:?}"));
        tree.apply(&plan);
    } else {
        let got = match result.expect_err(id) {
            PlanError::Patch(error) => {
                assert!(!error.to_string().contains("root-dir"), "{id}: {error}");
                name(error.code)
            }
            PlanError::Tree {
                error: Refused::Link,
                ..
            } => "SYMLINK_REJECTED",
            PlanError::Tree {
                error: Refused::NotDirectory,
                ..
            } => "PATH_NOT_DIRECTORY",
        };
        let mut allowed = strings(&expect["error_any"]);
        allowed.extend(expect["error"].as_str().map(str::to_owned));
        assert!(
            allowed.iter().any(|code| code == got),
            "{id}: {got}, want {allowed:?}"
        );
        assert_eq!(tree.things, before, "{id}");
    }
    for (path, wanted) in entries(&expect["files"]) {
        let wanted = wanted
            .as_str()
            .map(|text| Thing::File(text.as_bytes().to_vec()));
        assert_eq!(tree.things.get(&path), wanted.as_ref(), "{id}: {path}");
    }
    for (path, wanted) in entries(&expect["files_b64"]) {
        assert_eq!(
            tree.things.get(&path),
            Some(&Thing::File(base64(wanted.as_str().unwrap()))),
            "{id}: {path}"
        );
    }
}

#[test]
fn the_shared_cases() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cases/patch.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(cases.len() > 90);
    for case in &cases {
        run(case);
    }
}
