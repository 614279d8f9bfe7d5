//! What finding hunks costs, counted in comparisons.

use super::*;
use crate::parse::{Op, Patch};

fn work_of(file: &str, hunks: &str) -> Result<(usize, Vec<HunkReport>), PatchError> {
    work_from(Work::default(), file, hunks)
}

fn work_from(
    mut work: Work,
    file: &str,
    hunks: &str,
) -> Result<(usize, Vec<HunkReport>), PatchError> {
    let text = format!("*** Begin Patch\n*** Update File: f\n{hunks}*** End Patch\n");
    let patch = Patch::parse(&text)?;
    let Op::Update { hunks, .. } = &patch.ops()[0] else {
        panic!("an update");
    };
    let (_, reports) = apply(file.as_bytes(), hunks, 2, &mut work)?;
    Ok((work.done(), reports))
}

#[test]
fn many_hunks_of_equal_lines_cost_little_more_than_their_lines() {
    for count in [100, 1_000, 10_000] {
        let equal = "a\n".repeat(5 * count);
        let pairs = "a\nb\n".repeat(3 * count);
        let distinct: String = (0..count).map(|line| format!("l{line}\n")).collect();
        let backwards: String = (0..count)
            .rev()
            .map(|line| format!("@@\n-l{line}\n+c\n"))
            .collect();
        for (file, hunks) in [
            (&equal, "@@\n-a\n+c\n".repeat(count)),
            (&equal, "@@ a\n-a\n+c\n".repeat(count)),
            (&equal, "@@\n a\n-a\n a\n".repeat(count)),
            (&pairs, "@@\n-a\n-b\n+c\n".repeat(count)),
            (&distinct, backwards),
        ] {
            let (work, reports) = work_of(file, &hunks).expect("it fits");
            assert_eq!(reports.len(), count);
            assert!(work < 150 * count, "{work} for {count} hunks");
        }
    }
}

#[test]
fn the_counts_are_exact_all_the_same() {
    let (_, reports) = work_of(&"a\n".repeat(500), &"@@\n-a\n+c\n".repeat(500)).expect("it fits");
    for (nth, report) in reports.iter().enumerate() {
        assert_eq!((report.line, report.candidates), (nth + 1, 500 - nth));
    }
}

#[test]
fn a_patch_that_would_hold_the_workspace_for_minutes_is_refused() {
    // Blocks that differ, of lines that all repeat: each is a search of the whole file.
    let file = "a\nb\n".repeat(3_000);
    let hunks: String = (3..60)
        .map(|length| format!("@@\n{}+c\n", " a\n b\n".repeat(length)))
        .collect();
    let error = work_from(Work::left(100_000), &file, &hunks).expect_err("too much");
    assert_eq!(error.code, ErrorCode::TooMuchWork, "{error}");
}
