//! One JSON-RPC message as it came in: what is wrong with it, before rmcp sees it.
//!
//! rmcp answers malformed input with plain text, with another code than JSON-RPC's, or (over
//! stdio) not at all. One borrowed pass over the bytes; what passes is handed on unchanged.

use std::borrow::Cow;

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{json, value::RawValue};

/// Nesting that a recursive reader takes; serde_json's own bound.
const DEPTH: usize = 127;

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    result: Option<IgnoredAny>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct CallParams<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// Why a message is not served: a JSON-RPC error.
#[derive(Debug)]
pub(super) struct Fault {
    /// The request's own id, as it was written.
    id: Option<Box<RawValue>>,
    code: i32,
    message: String,
}

impl Fault {
    pub(super) fn request(message: impl Into<String>) -> Self {
        Self {
            id: None,
            code: -32600,
            message: message.into(),
        }
    }

    fn parse(message: String) -> Self {
        Self {
            id: None,
            code: -32700,
            message,
        }
    }

    /// A message that passed [`check`] but does not fit rmcp's types: a number out of range,
    /// half a surrogate pair.
    pub(super) fn unreadable(bytes: &[u8], why: impl std::fmt::Display) -> Self {
        Self::parse(format!("not JSON that can be held: {why}")).of(bytes)
    }

    /// With the id of the message it is about, where that can be made out.
    pub(super) fn of(mut self, message: &[u8]) -> Self {
        self.id = id_of(message);
        self
    }

    /// The error response, in one line.
    pub(super) fn to_json(&self) -> String {
        json!({ "jsonrpc": "2.0", "id": self.id, "error": { "code": self.code, "message": self.message } })
            .to_string()
    }
}

/// The first id of an object that may be cut or have other faults after it.
fn id_of(message: &[u8]) -> Option<Box<RawValue>> {
    struct First<'a>(&'a mut Option<Box<RawValue>>);
    impl<'de> Visitor<'de> for First<'_> {
        type Value = ();

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<Cow<'_, str>>()? {
                if key == "id" {
                    *self.0 = Some(map.next_value()?);
                    break;
                }
                map.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }
    let mut found = None;
    // It ends in an error after the first id: what follows was not read.
    let _ = serde_json::Deserializer::from_slice(message).deserialize_map(First(&mut found));
    found.filter(|id| is_id(id))
}

fn is_id(id: &RawValue) -> bool {
    id.get().starts_with('"') || id.get().parse::<i64>().is_ok()
}

/// Whether the message is an `initialize`.
///
/// # Errors
/// What makes it no message, or a tool call without its parts.
pub(super) fn check(bytes: &[u8]) -> Result<bool, Fault> {
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        return Err(Fault::request(
            "a batch is not served; send one message at a time",
        ));
    }
    if is_too_deep(bytes) {
        return Err(Fault::parse(
            "nested deeper than 127 levels; send a flatter message".to_owned(),
        ));
    }
    let message: Message<'_> = serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            Fault::request(format!("not a JSON-RPC message: {error}")).of(bytes)
        } else {
            Fault::parse(format!("not JSON: {error}"))
        }
    })?;
    if message.jsonrpc.as_deref() != Some("2.0") {
        return Err(Fault::request("jsonrpc: must be \"2.0\"").of(bytes));
    }
    if !message.id.is_none_or(is_id) {
        return Err(Fault::request("id: must be a string or an integer"));
    }
    let Some(method) = message.method.as_deref() else {
        if message.result.is_none() && message.error.is_none() {
            return Err(Fault::request("method: missing").of(bytes));
        }
        return Ok(false);
    };
    if method == "tools/call" {
        let shape = message.params.map_or("null", RawValue::get);
        let invalid = |why: &str| Fault {
            id: message.id.map(RawValue::to_owned),
            code: -32602,
            message: why.to_owned(),
        };
        let Ok(params) = serde_json::from_str::<CallParams<'_>>(shape) else {
            return Err(invalid("params: must be an object with name and arguments"));
        };
        if !params.name.is_some_and(|name| name.get().starts_with('"')) {
            return Err(invalid("params.name: must be a string, the name of a tool"));
        }
        if !params
            .arguments
            .is_none_or(|arguments| arguments.get().starts_with(['{', 'n']))
        {
            return Err(invalid("params.arguments: must be an object"));
        }
    }
    Ok(method == "initialize")
}

fn is_too_deep(bytes: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    bytes.iter().any(|byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > DEPTH
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(body: &str) -> i32 {
        check(body.as_bytes()).expect_err("refused").code
    }

    #[test]
    fn malformed_messages_are_answered_as_json_rpc() {
        assert_eq!(code("{"), -32700);
        assert_eq!(code(""), -32700);
        assert_eq!(
            code(&format!("{}1{}", "[".repeat(3), "]".repeat(3))),
            -32600
        );
        assert_eq!(code("3"), -32600);
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#),
            -32602
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":3}}"#),
            -32602
        );
        assert_eq!(
            code(
                r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":[]}}"#
            ),
            -32602
        );
        let deep = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{}{}}}"#,
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert_eq!(code(&deep), -32700);
    }

    #[test]
    fn good_messages_pass() {
        assert!(!check(br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{}}}"#).expect("passes"));
        assert!(
            check(br#" {"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#)
                .expect("passes")
        );
        assert!(!check(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#).expect("a response passes"));
    }

    const PIECES: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "null",
        "1",
        "-1e999",
        "\"\\ud800\"",
        "\u{0}",
        "\"jsonrpc\":\"2.0\"",
        "\"id\":1",
        "\"id\":{}",
        "\"method\":\"tools/call\"",
        "\"method\":\"initialize\"",
        "\"params\":{",
        "\"name\":\"read\"",
        "\"arguments\":{",
        "\"arguments\":[",
        " ",
        "\n",
        "\u{feff}",
        "é",
    ];

    proptest::proptest! {
        #[test]
        fn anything_passes_or_is_answered(picks in proptest::collection::vec(0..PIECES.len(), 0..40)) {
            let body: String = picks.into_iter().map(|pick| PIECES[pick]).collect();
            match check(body.as_bytes()) {
                Ok(_) => assert!(serde_json::from_str::<serde::de::IgnoredAny>(&body).is_ok(), "{body}"),
                Err(fault) => assert!(serde_json::from_str::<serde_json::Value>(&fault.to_json()).is_ok(), "{body}"),
            }
        }
    }
}
