//! Any JSON as the arguments of every tool: they decode or are refused, and what decodes is
//! validated and fingerprinted without a panic; the same call has the same fingerprint.
#![no_main]

use codespace_router::{Keyed, OnSubject, Profile, Validate, Workspace, WorkspaceId};
use codespace_tools::{
    ApplyPatch, ExecCommand, Find, OperationStatusTool, ProcessStatusTool, Read, ReadProcess,
    TerminateProcess, Tool, WorkspaceInfo, WriteStdin,
};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fn decode<T: Tool>(arguments: &Value) -> Option<T::Args> {
    let args: T::Args = serde_json::from_value(arguments.clone()).ok()?;
    let _ = args.subject();
    Some(args)
}

fuzz_target!(|text: &[u8]| {
    let Ok(arguments) = serde_json::from_slice::<Value>(text) else {
        return;
    };
    let workspace = Workspace {
        id: WorkspaceId::new("w"),
        profile: Profile::WorkspaceWrite,
        protect: ["kept".to_owned()].into(),
    };
    if let (Some(mut one), Some(mut two)) = (
        decode::<ApplyPatch>(&arguments),
        decode::<ApplyPatch>(&arguments),
    ) && one.validate(&workspace).is_ok()
    {
        assert!(two.validate(&workspace).is_ok());
        assert!(one.fingerprint() == two.fingerprint());
        assert!(one.files().is_sorted());
    }
    if let Some(mut args) = decode::<ExecCommand>(&arguments) {
        let _ = args.validate(&workspace);
    }
    decode::<Find>(&arguments);
    decode::<OperationStatusTool>(&arguments);
    decode::<ProcessStatusTool>(&arguments);
    decode::<Read>(&arguments);
    decode::<ReadProcess>(&arguments);
    decode::<TerminateProcess>(&arguments);
    decode::<WorkspaceInfo>(&arguments);
    decode::<WriteStdin>(&arguments);
});
