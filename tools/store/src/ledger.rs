//! The statements of the ledger, each on a connection its caller opened a transaction on.

use codespace_router::{
    Event, Fingerprint, Lookup, Minted, NewOperation, OperationId, OperationRecord,
    OperationStatus, WorkspaceId,
};
use jiff::{SignedDuration, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params, types::Type};

/// Rows a step of [`purge`] looks at: few enough that a call waiting behind it does not notice.
const PURGE_ROWS: i64 = 200;

macro_rules! select {
    ($tail:literal) => {
        concat!(
            "SELECT id, workspace, fingerprint, status, created_at, finished_at, reason, files, result \
             FROM operations ",
            $tail
        )
    };
}

/// A settlement in the form its row has.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) id: OperationId,
    pub(crate) status: OperationStatus,
    pub(crate) reason: Option<String>,
    pub(crate) result: String,
    /// Whether it also replaces an end that left the outcome open.
    pub(crate) revises: bool,
}

/// By what this store is known to journals.
pub(crate) fn identity(conn: &Connection) -> rusqlite::Result<String> {
    conn.query_row("SELECT id FROM identity", [], |row| row.get(0))
}

/// The operation, if there is one.
pub(crate) fn find(
    conn: &Connection,
    lookup: &Lookup,
) -> rusqlite::Result<Option<OperationRecord>> {
    match lookup {
        Lookup::Id(id) => conn
            .prepare_cached(select!("WHERE id = ?1"))?
            .query_row([id.as_str()], record)
            .optional(),
        Lookup::Key { caller, key } => by_key(conn, caller, key),
    }
}

fn by_key(conn: &Connection, caller: &str, key: &str) -> rusqlite::Result<Option<OperationRecord>> {
    conn.prepare_cached(select!("WHERE caller = ?1 AND op_key = ?2"))?
        .query_row([caller, key], record)
        .optional()
}

/// Every operation that has not ended, oldest first.
pub(crate) fn unfinished(conn: &Connection) -> rusqlite::Result<Vec<OperationRecord>> {
    conn.prepare_cached(select!("WHERE finished_at IS NULL ORDER BY seq"))?
        .query_map([], record)?
        .collect()
}

/// Reads something that is not in the page cache by chance alone.
pub(crate) fn probe(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached("SELECT seq FROM operations ORDER BY seq DESC LIMIT 1")?
        .query_row([], |_| Ok(()))
        .optional()
        .map(|_| ())
}

/// Records a running operation, unless its key is taken. `files` is the JSON of its paths.
pub(crate) fn mint(
    conn: &Connection,
    operation: &NewOperation,
    files: &str,
) -> rusqlite::Result<Minted> {
    if let Some(key) = &operation.key
        && let Some(record) = by_key(conn, &operation.caller, key)?
    {
        return Ok(Minted::Taken(Box::new(record)));
    }
    let id = OperationId::mint();
    conn.prepare_cached(
        "INSERT INTO operations (created_at, status, id, caller, op_key, fingerprint, workspace, files) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![
        stamp(Timestamp::now()),
        OperationStatus::Running.as_str(),
        id.as_str(),
        operation.caller,
        operation.key,
        operation.fingerprint.0,
        operation.workspace.as_str(),
        files,
    ])?;
    Ok(Minted::New(id))
}

/// Records an end, unless there is one. False when the operation does not exist.
pub(crate) fn finish(conn: &Connection, end: &End) -> rusqlite::Result<bool> {
    let changed = conn
        .prepare_cached(
            "UPDATE operations SET finished_at = ?1, status = ?2, reason = ?3, result = ?4 \
             WHERE id = ?5 AND (finished_at IS NULL \
             OR (?6 AND status IN ('unknown', 'failed_partial')))",
        )?
        .execute(params![
            stamp(Timestamp::now()),
            end.status.as_str(),
            end.reason,
            end.result,
            end.id.as_str(),
            end.revises,
        ])?;
    if changed > 0 {
        return Ok(true);
    }
    conn.prepare_cached("SELECT 1 FROM operations WHERE id = ?1")?
        .exists([end.id.as_str()])
}

/// When a record must have ended to be older than `keep`; `None` when `keep` reaches
/// further back than time does.
pub(crate) fn cutoff(keep: std::time::Duration) -> Option<String> {
    let keep = SignedDuration::try_from(keep).ok()?;
    Timestamp::now().checked_sub(keep).ok().map(stamp)
}

/// Deletes records after row `after` that ended before `cutoff`, looking at a few rows only.
/// Answers the row to go on after, or `None` at the end.
///
/// Rows are in order of creation and nothing ends before it begins, so the walk stops
/// at the first row created after the cutoff: it needs no index over the ends.
pub(crate) fn purge(conn: &Connection, after: i64, cutoff: &str) -> rusqlite::Result<Option<i64>> {
    let last: Option<i64> = conn
        .prepare_cached(
            "SELECT max(seq) FROM (SELECT seq, created_at FROM operations \
             WHERE seq > ?1 ORDER BY seq LIMIT ?2) WHERE created_at < ?3",
        )?
        .query_row(params![after, PURGE_ROWS, cutoff], |row| row.get(0))?;
    let Some(last) = last else { return Ok(None) };
    conn.prepare_cached(
        "DELETE FROM operations WHERE seq > ?1 AND seq <= ?2 AND finished_at < ?3",
    )?
    .execute(params![after, last, cutoff])?;
    Ok(Some(last))
}

/// RFC 3339 UTC with milliseconds: of fixed width, so text order is time order.
fn stamp(at: Timestamp) -> String {
    format!("{at:.3}")
}

fn record(row: &Row<'_>) -> rusqlite::Result<OperationRecord> {
    let status_name: String = row.get("status")?;
    let status = OperationStatus::from_name(&status_name)
        .ok_or_else(|| unreadable(3, format!("no status {status_name:?}")))?;
    let created_at: String = row.get("created_at")?;
    let finished_at: Option<String> = row.get("finished_at")?;
    let result: Option<String> = row.get("result")?;
    let minted = Event {
        at: created_at.clone(),
        name: "minted".to_owned(),
        status: None,
        reason: None,
    };
    let mut events = vec![minted];
    if let Some(at) = finished_at.clone() {
        let reason = row.get("reason")?;
        events.push(Event {
            at,
            name: "finished".to_owned(),
            status: Some(status),
            reason,
        });
    }
    Ok(OperationRecord {
        operation_id: row
            .get::<_, String>("id")?
            .parse()
            .map_err(|fault| unreadable(0, fault))?,
        workspace: WorkspaceId::new(&row.get::<_, String>("workspace")?),
        fingerprint: Fingerprint(row.get("fingerprint")?),
        status,
        created_at,
        finished_at,
        files: serde_json::from_str(&row.get::<_, String>("files")?)
            .map_err(|fault| unreadable(7, fault))?,
        result: result
            .map(|text| serde_json::from_str(&text))
            .transpose()
            .map_err(|fault| unreadable(8, fault))?,
        events,
    })
}

fn unreadable(
    column: usize,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, cause.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_have_a_fixed_width() {
        for millis in [0, 1, 1_000, 1_767_323_045_678] {
            assert_eq!(
                stamp(Timestamp::from_millisecond(millis).expect("in range")).len(),
                24
            );
        }
        let at = Timestamp::from_millisecond(1_767_323_045_678).expect("in range");
        assert_eq!(stamp(at), "2026-01-02T03:04:05.678Z");
    }

    #[test]
    fn a_keep_beyond_all_time_deletes_nothing() {
        assert_eq!(cutoff(std::time::Duration::MAX), None);
    }
}
