-- A rowid table: operations are appended, so the wide rows (a result may be large)
-- fill pages in order, and only the slim unique index over the random ids is hit at random.
-- The short columns come first: a walk over them never reads an overflow page.
CREATE TABLE operations (
    seq         INTEGER PRIMARY KEY,
    created_at  TEXT NOT NULL,      -- RFC 3339 UTC with milliseconds, so text order is time order
    finished_at TEXT,               -- NULL while running
    status      TEXT NOT NULL,
    reason      TEXT,
    id          TEXT NOT NULL,
    caller      TEXT NOT NULL,
    op_key      TEXT,
    fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 32),
    workspace   TEXT NOT NULL,
    files       TEXT NOT NULL,      -- JSON, an array of paths
    result      TEXT,               -- JSON, NULL while running
    CHECK ((status = 'running') = (finished_at IS NULL))
) STRICT;

CREATE UNIQUE INDEX operations_by_id ON operations (id);

-- A key belongs to its caller; without a key there is nothing to look up.
CREATE UNIQUE INDEX operations_by_key ON operations (caller, op_key) WHERE op_key IS NOT NULL;

-- Holds only what is running now: recovery at the start reads it instead of the table.
CREATE INDEX operations_running ON operations (seq) WHERE finished_at IS NULL;
