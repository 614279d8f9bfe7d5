//! The identifiers the server mints: opaque, unguessable, never interchangeable.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The text is not an id of this kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdFault;

impl fmt::Display for IdFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id of this kind")
    }
}

impl std::error::Error for IdFault {}

fn mint(prefix: &str) -> Box<str> {
    // 122 random bits: an id grants nothing, but it must not be guessed either.
    format!("{prefix}{}", uuid::Uuid::new_v4().simple()).into()
}

macro_rules! id {
    ($name:ident, $prefix:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// A fresh, unguessable id.
            #[must_use]
            pub fn mint() -> Self {
                Self(mint($prefix))
            }

            /// The wire form.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdFault;

            fn from_str(text: &str) -> Result<Self, IdFault> {
                let tail = text.strip_prefix($prefix).ok_or(IdFault)?;
                let hex = tail.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
                if tail.len() == 32 && hex { Ok(Self(text.into())) } else { Err(IdFault) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdFault;

            fn try_from(text: String) -> Result<Self, IdFault> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.into()
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string" })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(OperationId, "op_", "A recorded patch.");
id!(ProcessId, "proc_", "A managed process.");
id!(
    WorkId,
    "work_",
    "A work: a group of calls a user can steer."
);
id!(IntentId, "intent_", "What a user left for a work.");
id!(ApprovalId, "hold_", "An approval hold.");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back_and_do_not_mix() {
        let id = OperationId::mint();
        assert_eq!(id.as_str().parse::<OperationId>(), Ok(id.clone()));
        assert_eq!(id.as_str().parse::<ProcessId>(), Err(IdFault));
        assert_eq!("op_short".parse::<OperationId>(), Err(IdFault));
        assert_ne!(OperationId::mint(), id);
    }
}
