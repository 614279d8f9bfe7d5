//! What a patch costs beside its files' size.
#![allow(missing_docs)]

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

use codespace_patch::{Entry, Patch, Tree, plan};
use criterion::{Criterion, criterion_group, criterion_main};

struct Files<'a>(&'a HashMap<String, Arc<Vec<u8>>>);

impl Tree for Files<'_> {
    type Error = Infallible;

    fn load(&mut self, path: &str) -> Result<Entry, Infallible> {
        Ok(self
            .0
            .get(path)
            .map_or(Entry::Absent, |bytes| Entry::File(Arc::clone(bytes))))
    }

    fn eol_crlf(&mut self, _: &str) -> Result<bool, Infallible> {
        Ok(false)
    }
}

fn numbered(lines: usize) -> Arc<Vec<u8>> {
    let text: String = (0..lines)
        .map(|at| format!("let value_{at} = compute({at});\n"))
        .collect();
    Arc::new(text.into_bytes())
}

fn run(
    criterion: &mut Criterion,
    name: &str,
    files: &HashMap<String, Arc<Vec<u8>>>,
    ops: &str,
    fits: bool,
) {
    let text = format!("*** Begin Patch\n{ops}*** End Patch\n");
    criterion.bench_function(name, |bench| {
        bench.iter(|| {
            let result =
                Patch::parse(black_box(&text)).map(|patch| plan(&patch, &mut Files(files)));
            assert!(matches!(&result, Ok(plan) if plan.is_ok() == fits));
            result
        });
    });
}

fn engine(criterion: &mut Criterion) {
    let many: HashMap<_, _> = (0..200)
        .map(|at| (format!("src/{at}.rs"), numbered(500)))
        .collect();
    let mut ops = String::new();
    for at in 0..200 {
        let _ = writeln!(
            ops,
            "*** Update File: src/{at}.rs\n@@\n let value_249 = compute(249);\n-let value_250 = compute(250);\n+let other = 0;"
        );
    }
    run(criterion, "200 files", &many, &ops, true);

    let large = HashMap::from([("f".to_owned(), numbered(200_000))]);
    let ops = "*** Update File: f\n@@\n-let value_199999 = compute(199999);\n+let last = 0;\n";
    run(criterion, "last of 200,000 lines", &large, ops, true);

    let equal = HashMap::from([(
        "f".to_owned(),
        Arc::new("same line\n".repeat(200_000).into_bytes()),
    )]);
    let block = "-same line\n".repeat(500);
    run(
        criterion,
        "500 of 200,000 equal lines",
        &equal,
        &format!("*** Update File: f\n@@\n{block}+one\n"),
        true,
    );
    run(
        criterion,
        "499 of 200,000 equal lines, then another",
        &equal,
        &format!("*** Update File: f\n@@\n{block}-no\n"),
        false,
    );
}

criterion_group!(benches, engine);
criterion_main!(benches);
