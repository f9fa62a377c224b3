//! What the role of the pages may not do: every kind of change is tried on every table and view
//! that the ledger has, and each is refused for want of a right, not for another reason. A table
//! that is new is among them.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::mariadb::Mariadb;
use crate::support::postgres::{Postgres, bin};

/// A statement, and whether each error that it may end in is the right one.
struct Attempted {
    sql: String,
    /// Of the server: SQLSTATE or number.
    refusals: &'static [&'static str],
}

/// Runs the statements one by one to the end, and returns the error of each line.
fn errors(mut client: Command, sql: &str) -> Vec<(usize, String)> {
    client.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = client.spawn().expect("a client");
    let mut input = child.stdin.take().expect("stdin");
    let text = sql.to_owned();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("a client");
    writer.join().expect("a writer").expect("a client that reads");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    // psql:<stdin>:3: ERROR:  42501        ERROR 1142 (42000) at line 3: ...
    let number = |line: &str| {
        if let Some(rest) = line.strip_prefix("psql:<stdin>:") {
            let (at, error) = rest.split_once(": ERROR:  ")?;
            return Some((at.parse().ok()?, error.trim().to_owned()));
        }
        let (code, rest) = line.strip_prefix("ERROR ")?.split_once(' ')?;
        let at = rest.split_once("at line ")?.1.split(':').next()?;
        Some((at.parse().ok()?, code.to_owned()))
    };
    told.lines().filter_map(number).collect()
}

/// All are refused, each for the reason that is named with it.
#[track_caller]
fn are_refused(client: Command, first: &str, attempted: &[Attempted]) {
    let lines: String = attempted.iter().map(|one| format!("{};\n", one.sql)).collect();
    let errors = errors(client, &format!("{first}\n{lines}"));
    let mut wrong = Vec::new();
    for (at, one) in attempted.iter().enumerate() {
        let found: Vec<&str> =
            errors.iter().filter(|(line, _)| *line == at + 2).map(|(_, code)| &**code).collect();
        let is_refused = matches!(found[..], [code] if one.refusals.contains(&code));
        if !is_refused {
            wrong.push(format!("{}: {found:?}", one.sql));
        }
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), attempted.len());
    assert!(errors.iter().all(|(line, _)| *line > 1), "{first}: {errors:?}");
}

/// Words of what the owner sees, in lines of names with a blank between.
fn rows(text: &str) -> Vec<Vec<String>> {
    text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Tables whose bytes are not for the pages.
fn has_all(tables: &BTreeSet<String>) {
    for table in ["onedrop_message", "onedrop_raw", "onedrop_kept", "onedrop_job_run"] {
        assert!(tables.contains(table), "{table}: {tables:?}");
    }
}

pub fn changes_nothing_on_postgres(postgres: &Postgres, url: &str) {
    const DENIED: &[&str] = &["42501"];
    // A view, or a column of one, that no role can write to is refused as that.
    const OF_VIEW: &[&str] = &["42501", "55000", "428C9", "0A000"];
    let columns = rows(&postgres.psql(
        "SELECT concat_ws(' ', c.relname, c.relkind, a.attname)
         FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
         WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
           AND NOT a.attisdropped ORDER BY 1",
    ));
    let (mut tables, mut tries) = (BTreeSet::new(), Vec::new());
    let mut attempt = |sql: String, refusals| tries.push(Attempted { sql, refusals });
    for column in &columns {
        let [table, kind, name] = &column[..] else { panic!("{column:?}") };
        let refusals = if kind == "r" { DENIED } else { OF_VIEW };
        attempt(format!("UPDATE {table} SET {name} = DEFAULT"), refusals);
        if name == "bytes" || name == "body" {
            attempt(format!("SELECT {name} FROM {table}"), DENIED);
        }
        if !tables.insert(table.clone()) {
            continue;
        }
        attempt(format!("INSERT INTO {table} DEFAULT VALUES"), refusals);
        attempt(format!("DELETE FROM {table}"), refusals);
        let what = if kind == "r" { "TABLE" } else { "VIEW" };
        attempt(format!("DROP {what} {table} CASCADE"), DENIED);
        attempt(format!("ALTER {what} {table} RENAME TO mine"), DENIED);
        if kind == "r" {
            attempt(format!("TRUNCATE {table} CASCADE"), DENIED);
            attempt(format!("SELECT 1 FROM {table} FOR UPDATE"), DENIED);
            attempt(format!("BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE; ROLLBACK"), DENIED);
            attempt(format!("CREATE INDEX ON {table} ({name})"), DENIED);
            attempt(format!("COPY {table} FROM '/dev/null'"), DENIED);
        }
    }
    has_all(&tables);
    let sequences = postgres.psql(
        "SELECT relname FROM pg_class
         WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'",
    );
    assert!(sequences.lines().count() > 2, "{sequences}");
    for sequence in sequences.lines() {
        attempt(format!("SELECT nextval('{sequence}')"), DENIED);
    }
    attempt("CREATE TABLE mine (n int)".to_owned(), DENIED);
    attempt("CREATE FUNCTION mine() RETURNS int LANGUAGE sql AS 'SELECT 1'".to_owned(), DENIED);
    // What runs with its owner's rights is not for this role. Triggers' functions cannot be called.
    let powerful = postgres.psql(
        "SELECT p.oid::regprocedure FROM pg_proc p
         WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef
           AND p.prorettype <> 'trigger'::regtype",
    );
    assert!(powerful.contains("onedrop_assert_lock"), "{powerful}");
    let open = postgres.psql(
        "SELECT p.oid::regprocedure FROM pg_proc p
         WHERE p.pronamespace = 'public'::regnamespace AND p.prosecdef
           AND p.prorettype <> 'trigger'::regtype
           AND has_function_privilege('onedrop_reader', p.oid, 'EXECUTE')",
    );
    assert_eq!(open, "", "may be called by the pages' role");
    let mut psql = Command::new(bin("psql"));
    psql.args(["-Xq", "-v", "VERBOSITY=sqlstate", "-f", "-", url]).env_remove("PGOPTIONS");
    // Not only by a setting of its own, which it may change.
    are_refused(psql, "SET default_transaction_read_only = off;", &tries);
}

pub fn changes_nothing_on_mariadb(mariadb: &Mariadb, password: &str) {
    // Command denied: of a table, a column; access denied to the database; a privilege of all.
    const DENIED: &[&str] = &["1142", "1143", "1044", "1227", "1370"];
    // A column of a view that is computed is refused as that, by whomever.
    const OF_VIEW: &[&str] = &["1142", "1143", "1348", "1288", "1471"];
    let columns = rows(&mariadb.sql(
        "SELECT t.table_name, REPLACE(t.table_type, ' ', '_'), c.column_name
         FROM information_schema.tables t JOIN information_schema.columns c
              USING (table_schema, table_name)
         WHERE table_schema = 'onedrop' ORDER BY 1",
    ));
    let (mut tables, mut tries) = (BTreeSet::new(), Vec::new());
    let mut attempt = |sql: String, refusals| tries.push(Attempted { sql, refusals });
    for column in &columns {
        let [table, kind, name] = &column[..] else { panic!("{column:?}") };
        let is_view = kind == "VIEW";
        let refusals = if is_view { OF_VIEW } else { DENIED };
        attempt(format!("UPDATE {table} SET `{name}` = NULL"), refusals);
        if name == "bytes" || name == "body" {
            attempt(format!("SELECT `{name}` FROM {table}"), DENIED);
        }
        if !tables.insert(table.clone()) {
            continue;
        }
        attempt(format!("INSERT INTO {table} (`{name}`) VALUES (NULL)"), refusals);
        attempt(format!("REPLACE INTO {table} (`{name}`) VALUES (NULL)"), refusals);
        attempt(format!("DELETE FROM {table}"), refusals);
        attempt(format!("LOCK TABLES {table} WRITE"), DENIED);
        attempt(format!("GRANT SELECT ON {table} TO onedrop_reader@'%'"), DENIED);
        match is_view {
            true => attempt(format!("DROP VIEW {table}"), DENIED),
            false => {
                attempt(format!("TRUNCATE {table}"), DENIED);
                // SELECT ... FOR UPDATE is not among them: MariaDB grants it with SELECT.
                attempt(format!("DROP TABLE {table}"), DENIED);
                attempt(format!("RENAME TABLE {table} TO mine"), DENIED);
                attempt(format!("ALTER TABLE {table} ADD mine INT"), DENIED);
                attempt(format!("CREATE INDEX mine ON {table} (`{name}`)"), DENIED);
                attempt(
                    format!("CREATE TRIGGER mine BEFORE INSERT ON {table} FOR EACH ROW SET @a = 1"),
                    DENIED,
                );
            }
        }
    }
    has_all(&tables);
    assert!(tables.contains("onedrop_kept_bytes") && tables.contains("onedrop_slot"), "{tables:?}");
    attempt("CREATE TABLE mine (n INT)".to_owned(), DENIED);
    attempt("CREATE PROCEDURE mine() SELECT 1".to_owned(), DENIED);
    let routines = mariadb.sql(
        "SELECT routine_name FROM information_schema.routines WHERE routine_schema = 'onedrop'",
    );
    assert!(routines.contains("onedrop_assert_lock"), "{routines}");
    for routine in routines.lines() {
        attempt(format!("CALL {routine}('n', 1, 1, 'o')"), DENIED);
    }
    let mut client = Command::new("/usr/bin/mariadb");
    client.args(["--no-defaults", "--force", "-NBr", "-uonedrop_reader", "-h127.0.0.1"]);
    client.arg(format!("-p{password}")).arg(format!("-P{}", mariadb.port())).arg("onedrop");
    are_refused(client, "SET SESSION TRANSACTION READ WRITE;", &tries);
}
