//! `process_resize`: gives a process's terminal another size.

use std::{fmt, num::NonZeroU16, sync::Arc};

use codespace_router::{
    AccessClass, Annotations, AuthorizedCall, OnSubject, Subject, ToolError, ToolReply,
};
use codespace_runner::Runner;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, Unexpected, Visitor},
};

use crate::{Tool, tool::process_id};

/// Arguments of `process_resize`.
#[derive(Debug, Deserialize, JsonSchema)]
pub struct Args {
    /// The handle exec_command answered.
    process_id: String,
    /// Rows, 1 to 65,535.
    #[serde(deserialize_with = "side")]
    #[schemars(range(min = 1, max = 65535))]
    rows: NonZeroU16,
    /// Columns, 1 to 65,535.
    #[serde(deserialize_with = "side")]
    #[schemars(range(min = 1, max = 65535))]
    cols: NonZeroU16,
}

// Serde's own words for it, "a nonzero u16", are no help to a model.
fn side<'de, D: Deserializer<'de>>(source: D) -> Result<NonZeroU16, D::Error> {
    struct Side;

    impl Visitor<'_> for Side {
        type Value = NonZeroU16;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number from 1 to 65535")
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<NonZeroU16, E> {
            u16::try_from(value)
                .ok()
                .and_then(NonZeroU16::new)
                .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
        }
    }

    source.deserialize_u64(Side)
}

impl OnSubject for Args {
    fn subject(&self) -> Subject<'_> {
        Subject::Process(&self.process_id)
    }
}

/// Result of `process_resize`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Out {
    /// True: the terminal has this size now.
    ok: bool,
}

/// Resizes a terminal.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a runner has nothing to show")]
pub struct ProcessResize(pub Arc<dyn Runner>);

impl Tool for ProcessResize {
    type Args = Args;
    type Out = Out;

    const NAME: &'static str = "process_resize";
    const TITLE: &'static str = "Resize a command's terminal";
    const DESCRIPTION: &'static str = "Set the rows and columns of the terminal of a command that was started with \
`tty: true`. Full-screen programs are told (SIGWINCH) and draw anew. A command on pipes has no terminal: \
PROCESS_NOT_TTY.";
    const CLASS: AccessClass = AccessClass::Running;
    const ANNOTATIONS: Annotations = Annotations {
        read_only: false,
        destructive: false,
        idempotent: true,
        open_world: false,
    };

    async fn run(&self, call: AuthorizedCall<Args>) -> Result<ToolReply, ToolError> {
        let args = call.args();
        self.0
            .resize(&process_id(&args.process_id)?, args.rows, args.cols)
            .await?;
        ToolReply::from_result(&Out { ok: true })
    }
}
