//! The rules of the format, one by one.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use codespace_patch::{ChangeKind, ErrorCode, MatchKind, Patch};
use common::{Memory, Thing, edit, error, refuse, wrap};

fn lines(text: &str) -> (usize, Option<usize>) {
    let error = Patch::parse(text).unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidPatch, "{error}");
    (error.details.line.unwrap(), error.details.hunk)
}

#[test]
fn wrapping() {
    let body = "*** Begin Patch\n*** Update File: f\n@@\n-a\n+b\n*** End Patch";
    for open in ["<<EOF", "<<'EOF'", "<<\"EOF\""] {
        assert!(
            Patch::parse(&format!(" \n{open} \n\n{body}\n\nEOF\n\n")).is_ok(),
            "{open}"
        );
        assert!(
            Patch::parse(&format!("{open}\n{body}\n")).is_err(),
            "{open} unclosed"
        );
    }
    assert!(Patch::parse(&body.replace('\n', "\r\n")).unwrap().is_crlf());
    assert!(Patch::parse(&body.replace("File: f", "File: f\n*** Environment ID: x")).is_err());
    assert!(
        Patch::parse("{\"patch\": \"x\"}")
            .unwrap_err()
            .details
            .reason
            .contains("plain patch text")
    );
    for bad in [
        "",
        "\n",
        "*** Begin Patch",
        "*** End Patch",
        "*** Begin Patch\n*** End Patch",
        "<<EOF",
        "<<EOF\nEOF",
    ] {
        assert!(Patch::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn errors_tell_the_line_and_hunk() {
    assert_eq!(
        lines("\n\n*** Begin Patch\n*** Nonsense\n*** End Patch"),
        (4, None)
    );
    assert_eq!(
        lines(&wrap("*** Update File: f\n@@\n-a\n@@\n-b\nx\n")),
        (7, Some(2))
    );
    assert_eq!(lines(&wrap("*** Update File: f\n@@\n@@ x\n")), (5, Some(1)));
    assert_eq!(lines(&wrap("*** Update File: f\n")), (3, None));
    assert_eq!(
        lines(&wrap("*** Update File: f\n*** End of File\n")),
        (3, None)
    );
    assert_eq!(
        lines(&wrap("*** Update File: f\n-a\n*** End of File\n-b\n")),
        (5, Some(1))
    );
    assert_eq!(
        lines(&wrap("*** Update File: f\n-a\n*** Move to: g\n")),
        (4, Some(1))
    );
    assert_eq!(lines(&wrap("*** Delete File: f\n+a\n")), (3, None));
    assert_eq!(lines(&wrap("*** Add File: d/\n")), (2, None));
}

#[test]
fn paths() {
    let patch = Patch::parse(&wrap(
        "*** Update File: ./b//c\n*** Move to: a\n*** Delete File: b/c\n",
    ))
    .unwrap();
    assert_eq!(patch.paths(), ["a", "b/c"]);
    let mut tree = Memory::of(&[("f", "a\n")]);
    let escape = error(
        &mut tree,
        "*** Delete File: f\n*** Update File: f\n*** Move to: ../g\n",
    );
    assert_eq!(
        (escape.code, escape.details.line),
        (ErrorCode::PathEscape, Some(4))
    );
    assert!(
        tree.loads.is_empty(),
        "paths are checked before anything is loaded"
    );
}

#[test]
fn blank_lines_between_hunks() {
    assert_eq!(
        edit("a\nb\n", "\n@@\n-a\n+A\n\n\n\n@@\n-b\n+B\n\n"),
        "A\nB\n"
    );
    assert_eq!(
        edit("a\n\nb\n", "@@\n-a\n+A\n\n@@\n \n-b\n+B\n"),
        "A\n\nB\n"
    );
    assert_eq!(edit("x\ny\n\nz\n", "@@ x\n+new\n\n"), "x\nnew\ny\n\nz\n");
    assert_eq!(edit("x\n\nz\n", "@@\n+new\n\n"), "x\n\nz\nnew\n");
}

#[test]
fn end_of_file() {
    assert_eq!(
        edit("a\nb\na\n", "@@\n-a\n+z\n*** End of File\n"),
        "a\nb\nz\n"
    );
    assert_eq!(edit("a\n\n", "@@\n-a\n+z\n\n*** End of File\n"), "z\n\n");
    refuse("a\nb\n", "@@\n-a\n+z\n*** End of File\n");
    assert_eq!(
        edit("a\nb\nc\n", "@@\n-c\n+C\n*** End of File\n@@\n-a\n+A\n"),
        "A\nb\nC\n"
    );
    assert_eq!(edit("a\nb\n", "@@ a\n+z\n*** End of File\n"), "a\nb\nz\n");
}

#[test]
fn empty_last_old_line() {
    assert_eq!(edit("a\nb\n", "@@\n a\n-b\n-\n+c\n+\n"), "a\nc\n");
    assert_eq!(edit("a\nb", "@@\n a\n-b\n+c\n \n"), "a\nc\n");
    assert_eq!(edit("a\nb\n", "@@\n+c\n \n"), "a\nb\nc\n");
    assert_eq!(edit("a\n\nb\n", "@@\n-a\n-\n"), "b\n");
}

#[test]
fn anchors() {
    let file = "class A\n  def f\n    x\nclass B\n  def f\n    x\n";
    assert_eq!(
        edit(file, "@@ class B\n@@ def f\n-    x\n+    y\n"),
        file.replace("B\n  def f\n    x", "B\n  def f\n    y")
    );
    assert_eq!(
        edit(file, "@@ class B\n+  z\n"),
        file.replace("class B\n", "class B\n  z\n")
    );
    let missing = refuse(file, "@@ class B\n@@ class A\n-    x\n");
    assert_eq!(missing.details.line, Some(4));
    assert!(
        missing.details.closest.unwrap().differs_at.is_none(),
        "it is there, but before"
    );
    // A hunk with an anchor is never looked for before it.
    refuse("a\nb\n", "@@ b\n-a\n+A\n");
    assert_eq!(edit("a\nb\n", "@@ a\n+1\n@@\n-b\n+B\n"), "a\n1\nB\n");
}

#[test]
fn out_of_order() {
    assert_eq!(
        edit("a\nb\nc\n", "@@\n-c\n+C\n@@\n-a\n+A\n@@\n-b\n+B\n"),
        "A\nB\nC\n"
    );
    let twice = refuse("a\na\nc\n", "@@\n-c\n+C\n@@\n-a\n+A\n");
    assert_eq!((twice.details.hunk, twice.details.line), (Some(2), Some(6)));
    assert_eq!(edit("a\na\n", "@@\n-a\n+1\n@@\n-a\n+2\n"), "1\n2\n");
    refuse("a\n", "@@\n-a\n+1\n@@\n-a\n+2\n");
    // What an earlier hunk inserted is not looked at, and what it took is not taken twice.
    refuse("a\n", "@@\n-a\n+b\n@@\n-b\n+c\n");
    assert_eq!(
        edit("x\na\nx\n", "@@\n a\n-x\n+1\n@@\n-x\n+2\n"),
        "2\na\n1\n"
    );
}

#[test]
fn endings() {
    assert_eq!(
        edit("a\r\nb\nc\r\n", "@@\n a\n+1\n-b\n+2\n+3\n c\n+4\n"),
        "a\r\n1\n2\n3\nc\r\n4\r\n"
    );
    assert_eq!(edit("a\r\nb\n", "@@\n+top\n a\n"), "top\r\na\r\nb\n");
    assert_eq!(edit("a\r\nb", "@@\n-b\n+B\n"), "a\r\nB\r\n");
    assert_eq!(edit("a\r\nb", "@@\n b\n+c\n"), "a\r\nb\r\nc\r\n");
    assert_eq!(edit("a\r\nb", "@@\n-a\n+A\n b\n"), "A\r\nb");
    assert_eq!(edit("a", "@@\n+z\n a\n"), "z\na");
    assert_eq!(edit("a\rb\nc\n", "@@\n-a\rb\n+d\re\n"), "d\re\nc\n");
    assert_eq!(edit("a\nb", "@@\n-a\n-b\n"), "");
    assert_eq!(edit("", "@@\n+a\n"), "a\n");
}

#[test]
fn byte_order_mark() {
    assert_eq!(edit("\u{feff}a\nb\n", "@@\n-a\n+A\n"), "\u{feff}A\nb\n");
    assert_eq!(
        edit("\u{feff}a\nb\n", "@@\n-\u{feff}a\n+\u{feff}A\n"),
        "\u{feff}A\nb\n"
    );
    assert_eq!(edit("\u{feff}a\nb\n", "@@\n-a\n"), "\u{feff}b\n");
    assert_eq!(edit("\u{feff}", "@@\n+a\n"), "\u{feff}a\n");
}

#[test]
fn passes_and_candidates() {
    for (file, old, kind, candidates) in [
        ("x\nx\nx \n", "x", MatchKind::Exact, 2),
        ("x \nx\t\n x\n", "x", MatchKind::TrailingSpace, 2),
        (" x\n\tx\n", "x", MatchKind::Space, 2),
        ("a\u{2014}b\na\u{2212}b\n", "a-b", MatchKind::Unicode, 2),
    ] {
        let mut tree = Memory::of(&[("f", file)]);
        let plan = tree
            .plan(&wrap(&format!("*** Update File: f\n-{old}\n+new\n")))
            .unwrap();
        let report = &plan.changes[0].hunks[0];
        assert_eq!(
            (report.line, report.matched, report.candidates),
            (1, kind, candidates),
            "{file:?}"
        );
    }
    // A stricter pass over the whole range comes before a looser one.
    assert_eq!(edit("x \nx\n", "@@\n-x\n+y\n"), "x \ny\n");
    assert_eq!(edit("aba\n x\n", "@@\n aba\n-x\n+y\n"), "aba\ny\n");
}

#[test]
fn bytes_that_are_not_text() {
    let mut tree = Memory::default();
    tree.things.insert(
        "f".to_owned(),
        Thing::File(b"\xe9 \r\nold\r\n\xff".to_vec()),
    );
    let plan = tree
        .plan(&wrap("*** Update File: f\n-  old\n+new\n"))
        .unwrap();
    assert_eq!(
        plan.changes[0].after.as_deref().map(Vec::as_slice),
        Some(&b"\xe9 \r\nnew\r\n\xff"[..])
    );
}

#[test]
fn closest_place() {
    let error = refuse("zero\none\ntwo\nthree\n", "@@\n one\n two\n-drei\n+3\n");
    let closest = error.details.closest.unwrap();
    assert_eq!(
        (
            closest.line,
            closest.agree,
            closest.differs_at,
            closest.patch_line
        ),
        (2, 2, Some(4), Some(6))
    );
    assert_eq!(closest.expected.as_deref(), Some("drei"));
    let short = refuse("one\n", "@@\n one\n-two\n").details.closest.unwrap();
    assert_eq!((short.line, short.agree, short.differs_at), (1, 1, Some(2)));
    let like = refuse("alpha\nbeta = 10\n", "@@\n-beta = 11\n+x\n")
        .details
        .closest
        .unwrap();
    assert_eq!((like.line, like.agree, like.differs_at), (2, 0, Some(2)));
    assert!(refuse("", "@@\n-a\n").details.closest.is_none());
}

/// `(path, kind, moved_to, before, after)` of every row.
fn rows(files: &[(&str, &str)], ops: &str) -> Vec<String> {
    let plan = Memory::of(files)
        .plan(&wrap(ops))
        .unwrap_or_else(|error| panic!("{error:?}"));
    let text = |bytes: &Option<std::sync::Arc<Vec<u8>>>| {
        bytes.as_ref().map_or("-".to_owned(), |bytes| {
            String::from_utf8_lossy(bytes).trim().to_owned()
        })
    };
    let row = |change: &codespace_patch::PlannedChange| {
        let to = change
            .moved_to
            .as_ref()
            .map(|to| format!(">{to}"))
            .unwrap_or_default();
        let kind = match change.kind {
            ChangeKind::Add => "add",
            ChangeKind::Update => "update",
            ChangeKind::Delete => "delete",
            ChangeKind::Move => "move",
        };
        format!(
            "{kind} {}{to} {} {}",
            change.path,
            text(&change.before),
            text(&change.after)
        )
    };
    plan.changes.iter().map(row).collect()
}

fn moved(from: &str, to: &str) -> String {
    format!("*** Update File: {from}\n*** Move to: {to}\n")
}

#[test]
fn one_row_per_path_that_differs() {
    let a = [("a", "1\n")];
    let ab = [("a", "1\n"), ("b", "2\n")];
    let (add, delete) = ("*** Add File: a\n+n\n", "*** Delete File: a\n");
    assert_eq!(rows(&a, &format!("{delete}{add}")), ["update a 1 n"]);
    assert!(rows(&a, &format!("{delete}*** Add File: a\n+1\n")).is_empty());
    assert!(rows(&[], &format!("{add}{delete}")).is_empty());
    assert!(rows(&a, "*** Update File: a\n-1\n+1\n").is_empty());
    assert!(
        rows(
            &a,
            "*** Update File: a\n-1\n+2\n*** Update File: a\n-2\n+1\n"
        )
        .is_empty()
    );
    assert_eq!(
        rows(
            &a,
            "*** Update File: a\n-1\n+2\n*** Update File: a\n-2\n+3\n"
        ),
        ["update a 1 3"]
    );
    assert_eq!(
        rows(&a, &(moved("a", "b") + &moved("b", "c"))),
        ["move a>c 1 1"]
    );
    assert!(rows(&a, &(moved("a", "b") + &moved("b", "a"))).is_empty());
    assert_eq!(
        rows(&a, &(moved("a", "b") + "*** Delete File: b\n")),
        ["delete a 1 -"]
    );
    assert_eq!(
        rows(&[], &(add.to_owned() + &moved("a", "b"))),
        ["add b - n"]
    );
    assert_eq!(
        rows(&a, &(moved("a", "b") + add)),
        ["update a 1 n", "add b - 1"]
    );
    assert_eq!(
        rows(&a, &(moved("a", "b") + "*** Add File: a\n+1\n")),
        ["add b - 1"]
    );
    assert_eq!(
        rows(&ab, &("*** Delete File: b\n".to_owned() + &moved("a", "b"))),
        ["move a>b 1 1", "update b 2 1"]
    );
    let swap = moved("a", "t") + &moved("b", "a") + &moved("t", "b");
    assert_eq!(rows(&ab, &swap), ["update a 1 2", "update b 2 1"]);
    assert_eq!(
        rows(&a, &(moved("a", "b") + "*** Update File: b\n-1\n+2\n")),
        ["move a>b 1 2"]
    );
}

#[test]
fn refusals() {
    let code = |files: &[(&str, &str)], ops: &str| error(&mut Memory::of(files), ops).code;
    let a = [("a", "1\n"), ("d/x", "1\n")];
    assert_eq!(
        code(&a, "*** Delete File: a\n*** Update File: a\n-1\n"),
        ErrorCode::FileNotFound
    );
    assert_eq!(
        code(&a, &(moved("a", "b") + "*** Delete File: a\n")),
        ErrorCode::FileNotFound
    );
    assert_eq!(code(&a, &moved("a", "d")), ErrorCode::MoveDestinationExists);
    assert_eq!(
        code(&a, &moved("a", "./a")),
        ErrorCode::MoveDestinationExists
    );
    assert_eq!(code(&a, "*** Delete File: d\n"), ErrorCode::SpecialFile);
    assert_eq!(
        code(&a, "*** Add File: n\n*** Add File: n/x\n"),
        ErrorCode::NotDirectory
    );
    assert_eq!(
        code(&a, "*** Add File: n/x\n*** Add File: n\n"),
        ErrorCode::AddFileExists
    );
    assert_eq!(
        code(&a, "*** Add File: n/x\n*** Delete File: n\n"),
        ErrorCode::SpecialFile
    );
    assert_eq!(
        code(&a, "*** Add File: n\n*** Add File: n\n"),
        ErrorCode::AddFileExists
    );
    let mut tree = Memory::default();
    tree.things.insert("h".to_owned(), Thing::Huge);
    assert_eq!(
        error(&mut tree, "*** Update File: h\n-a\n").code,
        ErrorCode::TooLarge
    );
}

#[test]
fn added_endings() {
    for (crlf_text, attribute, wanted) in [
        (false, true, "x\n"),
        (true, false, "x\n"),
        (true, true, "x\r\n"),
    ] {
        let mut tree = Memory {
            crlf: if attribute {
                vec!["n".to_owned()]
            } else {
                Vec::new()
            },
            ..Memory::default()
        };
        let text = wrap("*** Add File: n\n+x\n");
        let plan = tree
            .plan(&if crlf_text {
                text.replace('\n', "\r\n")
            } else {
                text
            })
            .unwrap();
        assert_eq!(
            plan.changes[0].after.as_deref().map(Vec::as_slice),
            Some(wanted.as_bytes())
        );
    }
}
