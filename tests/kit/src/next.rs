//! Programs of later schema versions, which only tests have: they are this source with one or two
//! more migrations ([`Program::next`]), so that no shipped program holds a trace of them. The next
//! version's migration adds a column, fills it in batches and builds an index, as later ones will.

use onedrop::ledger::{Migration, MigrationStep, Program, SCHEMA_VERSION, SharedConfig};

pub const NAME: &str = "0012_next";

const fn next(steps: &'static [MigrationStep]) -> Migration {
    Migration { version: SCHEMA_VERSION + 1, oldest_program: SCHEMA_VERSION, name: NAME, steps }
}

/// Adds a table, and takes programs of this version no more.
const AFTER_NEXT: Migration = Migration {
    version: SCHEMA_VERSION + 2,
    oldest_program: SCHEMA_VERSION + 1,
    name: "0013_after_next",
    steps: &[MigrationStep::Transaction("CREATE TABLE IF NOT EXISTS onedrop_after_next (n int)")],
};

const INDEX: MigrationStep = MigrationStep::Index {
    name: "onedrop_message_next_note",
    table: "onedrop_message",
    on: "(next_note)",
};

macro_rules! postgres {
    ($rows:literal) => {
        &[
            MigrationStep::Transaction(
                "ALTER TABLE onedrop_message ADD COLUMN next_note text;
                 ALTER TABLE onedrop_message ALTER COLUMN next_note SET DEFAULT 'new'",
            ),
            MigrationStep::Batches {
                table: "onedrop_message",
                sql: concat!(
                    "UPDATE onedrop_message SET next_note = 'old'
                     WHERE id IN (SELECT id FROM onedrop_message WHERE next_note IS NULL
                                  LIMIT ",
                    $rows,
                    " FOR UPDATE)"
                ),
            },
            INDEX,
        ]
    };
}

/// Small batches, so that a small ledger takes some.
pub const POSTGRES: &[Migration] = &[next(postgres!("40"))];
pub const POSTGRES_LARGE: &[Migration] = &[next(postgres!("5000"))];

pub const SQLITE: &[Migration] = &[next(&[
    MigrationStep::Transaction("ALTER TABLE onedrop_message ADD COLUMN next_note TEXT"),
    MigrationStep::Batches {
        table: "onedrop_message",
        sql: "UPDATE onedrop_message SET next_note = 'old' WHERE id IN
              (SELECT id FROM onedrop_message WHERE next_note IS NULL LIMIT 40)",
    },
    INDEX,
])];

pub const MARIADB: &[Migration] = &[next(&[
    MigrationStep::Transaction(
        "ALTER TABLE onedrop_message ADD COLUMN IF NOT EXISTS next_note VARCHAR(10),
             ALGORITHM = INSTANT;
         ALTER TABLE onedrop_message ALTER COLUMN next_note SET DEFAULT 'new',
             ALGORITHM = INSTANT",
    ),
    MigrationStep::Batches {
        table: "onedrop_message",
        sql: "UPDATE onedrop_message SET next_note = 'old'
              WHERE id > ?1 AND id <= ?2 AND next_note IS NULL",
    },
    INDEX,
])];

/// One version further: for a program that is two away.
pub const POSTGRES_AFTER: &[Migration] = &[POSTGRES[0], AFTER_NEXT];
pub const SQLITE_AFTER: &[Migration] = &[SQLITE[0], AFTER_NEXT];
pub const MARIADB_AFTER: &[Migration] = &[MARIADB[0], AFTER_NEXT];

pub fn program(config: Option<SharedConfig>, next: &'static [Migration]) -> Program {
    Program { config, next, ..Program::default() }
}
