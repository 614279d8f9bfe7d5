//! Reading output.

use super::*;

#[tokio::test]
async fn a_flood_is_bounded_and_a_gap_is_told() {
    let b = bench().await;
    let id = b.start(&["yes"]).await;
    let mut cursor = 0;
    while cursor < 4 << 20 {
        let chunk = timeout(HANG, b.all.output(&id, cursor, HANG))
            .await
            .expect("no hang")
            .expect("known");
        assert!(chunk.cursor > cursor && chunk.chunk.len() <= 64 * 1024);
        cursor = chunk.cursor;
    }
    b.all.terminate(&id).await.expect("ended");
    let status = b.exit(&id).await;
    assert_eq!(
        (
            status.termination,
            status.output_total - status.output_retained_from
        ),
        (Some(Termination::Terminated), 256 * 1024)
    );
    let chunk = b.all.output(&id, 0, NO_WAIT).await.expect("known");
    assert!(
        chunk.output_lost
            && chunk.retained_from == status.output_retained_from
            && chunk.retained_from > 0
    );
    assert_eq!(chunk.cursor, chunk.retained_from + 64 * 1024);
    let end = b.all.output(&id, u64::MAX, HANG).await.expect("known");
    assert_eq!(
        (end.cursor, end.eof, end.chunk.as_str()),
        (status.output_total, true, "")
    );
}

#[tokio::test]
async fn half_a_character_is_nothing_new() {
    let b = bench().await;
    let id = b
        .sh(r"printf '\342\206'; read x; printf '\222'; read x; printf '\342'")
        .await;
    timeout(HANG, async {
        while b
            .all
            .status(&id, NO_WAIT)
            .await
            .expect("known")
            .output_total
            < 2
        {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("written");
    assert_eq!(
        b.all
            .output(&id, 0, Duration::from_millis(1))
            .await
            .expect("known")
            .cursor,
        0
    );
    b.all.write_stdin(&id, b"\n", false).await.expect("taken");
    let chunk = b.all.output(&id, 0, HANG).await.expect("known");
    assert_eq!(
        (chunk.chunk.as_str(), chunk.cursor, chunk.eof),
        ("→", 3, false)
    );
    b.all.write_stdin(&id, b"\n", false).await.expect("taken");
    let chunk = b.all.output(&id, 3, HANG).await.expect("known");
    assert_eq!((chunk.chunk.as_str(), chunk.eof), ("\u{fffd}", true));
}
