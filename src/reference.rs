//! The reference of tools and errors, generated from the code; a test keeps
//! `docs/reference.md` equal to it.

use std::fmt::Write;

use codespace_router::{Code, ToolSpec};
use codespace_tools::{
    ApplyPatch, ExecCommand, Find, OperationStatusTool, ProcessResize, ProcessStatusTool, Read,
    ReadProcess, TerminateProcess, Tool, WorkspaceInfo, WriteStdin,
};
use serde_json::{Map, Value};

fn render() -> String {
    let mut text = String::from(
        "# Tools and errors\n\nGenerated from the code; `UPDATE_REFERENCE=1 cargo test reference` writes it anew.\n",
    );
    let specs = [
        WorkspaceInfo::spec(),
        Read::spec(),
        Find::spec(),
        ApplyPatch::spec(),
        OperationStatusTool::spec(),
        ExecCommand::spec(),
        ReadProcess::spec(),
        WriteStdin::spec(),
        ProcessStatusTool::spec(),
        ProcessResize::spec(),
        TerminateProcess::spec(),
    ];
    assert!(
        specs
            .iter()
            .map(|spec| spec.name)
            .eq(crate::catalogue::NAMES),
        "the catalogue and the reference differ"
    );
    for spec in specs {
        tool(&mut text, &spec);
    }
    text.push_str("\n# Error codes\n\n| code | meaning |\n|---|---|\n");
    for code in Code::ALL {
        let _ = writeln!(text, "| `{}` | {} |", code.as_str(), code.meaning());
    }
    text
}

fn tool(text: &mut String, spec: &ToolSpec) {
    let hints = &spec.annotations;
    let _ = writeln!(
        text,
        "\n## `{}`: {}\n\n{}\n\nScope `{}`. Read-only: {}. Destructive: {}. Idempotent: {}. Open world: {}.\n",
        spec.name,
        spec.title,
        spec.description,
        spec.class.scope().as_str(),
        hints.read_only,
        hints.destructive,
        hints.idempotent,
        hints.open_world,
    );
    fields(text, "argument", &spec.input);
    fields(text, "result", &spec.output);
}

fn fields(text: &mut String, title: &str, schema: &Map<String, Value>) {
    let required: Vec<&str> = schema
        .get("required")
        .or_else(|| schema.get("anyOf")?.get(0)?.get("required"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let _ = writeln!(text, "| {title} | type | |\n|---|---|---|");
    for (name, property) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let kind = property.get("type").map_or_else(
            || "string".to_owned(),
            |kind| kind.to_string().replace('"', ""),
        );
        let words = property
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .replace('\n', " ");
        let optional = if required.contains(&name.as_str()) {
            ""
        } else {
            "?"
        };
        let _ = writeln!(text, "| `{name}{optional}` | {kind} | {words} |");
    }
    text.push('\n');
}

#[test]
fn reference_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference.md");
    let text = render();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(path, &text).expect("docs/reference.md can be written");
    }
    let stored = std::fs::read_to_string(path).expect("docs/reference.md exists");
    assert!(
        stored == text,
        "docs/reference.md is stale; run UPDATE_REFERENCE=1 cargo test reference"
    );
}
