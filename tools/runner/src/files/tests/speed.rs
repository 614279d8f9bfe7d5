//! Rough times, for a release build: `cargo test --release -p codespace-runner speed -- --ignored --nocapture`.

use std::fmt::Write as _;

use super::{Bench, apply, keep};

fn time(what: &str, times: u32, mut act: impl FnMut(u32)) {
    act(0);
    let start = tokio::time::Instant::now();
    (1..=times).for_each(&mut act);
    println!("{what}: {:?}", start.elapsed() / times);
}

#[test]
#[ignore = "prints times; asserts nothing"]
fn speed() {
    let bench = Bench::new();
    bench.put("k4", &"x".repeat(4096));
    time("read of 4 KiB", 10_000, |_| {
        drop(bench.files.read("k4").unwrap())
    });
    let lines: String = (0..100).map(|n| format!("line {n}\n")).collect();
    bench.put("f", &lines.replace("line 50\n", "v0\n"));
    time("one hunk in 100 lines", 2_000, |n| {
        let (old, new) = (n, n + 1);
        let patch = format!(
            "*** Begin Patch\n*** Update File: f\n@@\n line 49\n-v{old}\n+v{new}\n line 51\n*** End Patch\n"
        );
        keep(apply(&bench, &patch).unwrap());
    });
    (0..200).for_each(|file| {
        bench.put(
            &format!("d{}/{file}", file % 10),
            &lines.replace("line 50\n", "v0\n"),
        )
    });
    time("200 files", 20, |n| {
        let mut patch = String::from("*** Begin Patch\n");
        for file in 0..200 {
            let _ = write!(
                patch,
                "*** Update File: d{}/{file}\n@@\n line 49\n-v{n}\n+v{}\n",
                file % 10,
                n + 1
            );
        }
        keep(apply(&bench, &(patch + "*** End Patch\n")).unwrap());
    });
    (0..100_000).for_each(|file| bench.put(&format!("many/{}/{file}", file % 300), ""));
    time("find, 100,000 files, all walked", 3, |_| {
        drop(bench.files.find(Some("**/nothing*")).unwrap())
    });
    time("find, the first 1,000", 10, |_| {
        drop(bench.files.find(None).unwrap())
    });
}
