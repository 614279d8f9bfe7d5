-- By what a journal knows its ledger again, wherever the file lies by then.
CREATE TABLE identity (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id  TEXT NOT NULL
) STRICT;

INSERT INTO identity (one, id) VALUES (1, lower(hex(randomblob(16))));
