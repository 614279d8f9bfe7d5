//! Brings a store file to the schema this build knows, one numbered step at a time.
//!
//! `user_version` counts the steps done. A step and its count are one transaction,
//! so a crash leaves a schema from before the step or after it. A step that was
//! released is never edited; a change is a new step.

use rusqlite::{Connection, TransactionBehavior};

/// Marks a file as ours ("CSPC"), so that another program's database is never migrated.
pub(crate) const APPLICATION_ID: i64 = 0x4353_5043;

const STEPS: &[&str] = &[
    include_str!("migrations/0001_ledger.sql"),
    include_str!("migrations/0002_identity.sql"),
];

/// The schema version this build writes.
pub(crate) fn known() -> i64 {
    i64::try_from(STEPS.len()).unwrap_or(i64::MAX)
}

/// What a file holds, found out without a write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing yet.
    Fresh,
    /// A store with this many steps done.
    Store(i64),
    /// Another program's database.
    Foreign,
}

/// Looks at a file before anything in it is changed.
pub(crate) fn inspect(conn: &Connection) -> rusqlite::Result<Kind> {
    let application: i64 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let version: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let objects: i64 =
        conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match application {
        APPLICATION_ID => Kind::Store(version),
        0 if version == 0 && objects == 0 => Kind::Fresh,
        _ => Kind::Foreign,
    })
}

/// Runs the steps after `done`.
pub(crate) fn run(conn: &mut Connection, done: i64) -> rusqlite::Result<()> {
    for (version, step) in (1_i64..).zip(STEPS).filter(|(version, _)| *version > done) {
        let transaction = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_database_becomes_a_store_and_stays_one() {
        let mut conn = Connection::open_in_memory().expect("open");
        assert_eq!(inspect(&conn).expect("inspect"), Kind::Fresh);
        run(&mut conn, 0).expect("migrate");
        assert_eq!(inspect(&conn).expect("inspect"), Kind::Store(known()));
        run(&mut conn, known()).expect("nothing left to do");
    }

    #[test]
    fn another_programs_database_is_told_apart() {
        let conn = Connection::open_in_memory().expect("open");
        conn.execute_batch("CREATE TABLE bookmarks (url TEXT)")
            .expect("table");
        assert_eq!(inspect(&conn).expect("inspect"), Kind::Foreign);
    }
}
