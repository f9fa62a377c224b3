//! Statements that are kept prepared (`ledger.prepare`): in which connections, and what becomes of
//! a call whose statement the server has lost.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use onedrop::ledger::postgres::{PostgresLedger, PostgresSettings, Prepare};
use secrecy::SecretString;

use super::standby::with_tls;
use super::support::TempRoot;
use super::support::pgbouncer::PgBouncer;
use super::support::postgres::Postgres;
use super::*;

/// Each session notes, with a message that it records, how many statements it has prepared by then.
/// Then it does what `does` says, as another who has the session between its transactions.
const WATCH: &str = "
CREATE TABLE noted (id bigint GENERATED ALWAYS AS IDENTITY, pid int, prepared bigint);
CREATE TABLE does (statement text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE one text;
BEGIN
    INSERT INTO noted (pid, prepared)
    SELECT pg_backend_pid(), count(*) FROM pg_prepared_statements;
    FOR one IN SELECT statement FROM does LOOP EXECUTE one; END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON onedrop_message FOR EACH ROW EXECUTE FUNCTION note()";

/// A pooler's reset does so.
const LOSES: &str = "INSERT INTO does VALUES ('DEALLOCATE ALL')";

/// The names that this process gives to its first hundred statements.
const TAKES_NAMES: &str = "
INSERT INTO does SELECT 'PREPARE s' || n || ' AS SELECT 1' FROM generate_series(0, 99) n";

fn watched(rig: PostgresRig) -> PostgresRig {
    rig.sql(WATCH);
    rig
}

/// What was noted, in its order.
fn noted(rig: &PostgresRig) -> String {
    rig.postgres.psql("SELECT string_agg(prepared::text, ' ' ORDER BY id) FROM noted")
}

/// A handle with one connection, of which each call takes the same.
fn host(rig: &PostgresRig, url: &str, prepare: Prepare, ca_file: Option<&Path>) -> Host {
    let settings = PostgresSettings {
        password: Some(SecretString::from(rig.postgres.password())),
        ca_file: ca_file.map(Path::to_path_buf),
        prepare,
        ..Postgres::settings(url)
    };
    Host(Arc::new(PostgresLedger::new(settings, limits(1)).expect("a ledger")))
}

fn record(host: &Host, names: &[&str]) -> Vec<Claim> {
    names.iter().map(|name| host.claim(&mail(name), &inbox())).collect()
}

/// Each message is on record once, by one attempt, whose lease is its first.
#[track_caller]
fn is_recorded_once(rig: &PostgresRig, messages: usize) {
    let rows = "SELECT (SELECT count(*) FROM onedrop_message), (SELECT count(*) FROM onedrop_copy),
                       (SELECT count(*) FROM onedrop_attempt_text),
                       (SELECT count(*) FROM onedrop_copy WHERE epoch <> 1 OR prior_doubt)";
    assert_eq!(rig.postgres.psql(rows), format!("{messages}|{messages}|{messages}|0"));
}

/// A statement that comes once is not worth it: a delivery by its own process prepares none.
#[test]
fn a_connection_to_the_server_keeps_statements_that_come_again() {
    let (keys, settings) = with_tls();
    let rig = watched(PostgresRig::with(&settings));
    let (ca_file, socket, tcp) =
        (keys.join("cert.pem"), rig.postgres.url_socket(), rig.postgres.url_tcp());
    let tls = format!("{}?sslmode=require", tcp.replace("127.0.0.1", "localhost"));
    let ways = [
        ("socket", &socket, Prepare::Auto, "0 0 1 1"),
        ("tcp", &tcp, Prepare::Auto, "0 0 1 1"),
        ("tls", &tls, Prepare::Auto, "0 0 1 1"),
        ("always", &socket, Prepare::Always, "0 1 1 1"),
        ("never", &socket, Prepare::Never, "0 0 0 0"),
    ];
    for (way, url, prepare, expected) in ways {
        let host = host(&rig, url, prepare, Some(&ca_file));
        let names = [1, 2, 3, 4].map(|number| format!("{way}.{number}"));
        record(&host, &names.each_ref().map(String::as_str));
        assert_eq!(noted(&rig), expected, "{way}");
        rig.sql("DELETE FROM noted");
    }
}

#[test]
fn through_a_pooler_none_is_prepared_and_no_call_fails() {
    for mode in ["transaction", "session"] {
        let rig = watched(PostgresRig::shared());
        let bouncer = PgBouncer::start_in(&rig.postgres, mode);
        for url in [bouncer.url(), bouncer.url_tcp()] {
            let host = host(&rig, &url, Prepare::Auto, None);
            let names = [1, 2, 3, 4].map(|number| format!("{number} {url}"));
            for claim in record(&host, &names.each_ref().map(String::as_str)) {
                assert_eq!(host.confirm(&claim, &uid(1)), Confirmed::Recorded, "{mode}");
            }
        }
        assert_eq!(noted(&rig), "0 0 0 0 0 0 0 0", "{mode}");
        is_recorded_once(&rig, 8);
    }
}

/// The address leads to the server, and from the next connection on to a pooler.
#[test]
fn a_pooler_that_comes_between_is_noticed_at_the_next_connection() {
    let rig = watched(PostgresRig::shared());
    let bouncer = PgBouncer::shared(&rig.postgres);
    let folder = TempRoot::new();
    let socket = folder.join(".s.PGSQL.5432");
    let leads_to = |folder: &Path, port: u16| {
        let _ = fs::remove_file(&socket);
        symlink(folder.join(format!(".s.PGSQL.{port}")), &socket).expect("a link");
    };
    let database = rig.postgres.database();
    let url = format!("postgres://onedrop@/{database}?host={}&port=5432", folder.display());
    let host = host(&rig, &url, Prepare::Auto, None);
    leads_to(&rig.postgres.socket_dir(), rig.postgres.port());
    record(&host, &["a", "b", "c"]);
    leads_to(&bouncer.socket_dir(), bouncer.port());
    rig.lose_sessions();
    record(&host, &["d", "e", "f", "g"]);
    assert_eq!(noted(&rig), "0 0 1 0 0 0 0");
    is_recorded_once(&rig, 7);
}

/// Another process prepared its own in the same session of a pooler's (42P05).
#[test]
fn a_name_that_another_has_taken_costs_one_more_connection_and_then_none_is_prepared() {
    let rig = watched(PostgresRig::shared());
    let host = host(&rig, &rig.postgres.url_socket(), Prepare::Auto, None);
    record(&host, &["a"]);
    rig.sql(TAKES_NAMES);
    record(&host, &["b"]);
    rig.sql("DELETE FROM does");
    record(&host, &["c", "d", "e", "f"]);
    assert_eq!(noted(&rig), "0 0 0 0 0 0");
    let sessions = "SELECT string_agg(n::text, ' ' ORDER BY first)
                    FROM (SELECT min(id) AS first, count(*) AS n FROM noted GROUP BY pid) s";
    assert_eq!(rig.postgres.psql(sessions), "2 4");
    assert_eq!(host.0.count(), (0, 1));
    is_recorded_once(&rig, 6);
}

#[test]
fn a_statement_that_is_lost_costs_one_more_connection_and_then_none_is_prepared() {
    let rig = watched(PostgresRig::shared());
    let host = host(&rig, &rig.postgres.url_socket(), Prepare::Auto, None);
    record(&host, &["a", "b", "c"]);
    rig.sql(LOSES);
    record(&host, &["loses"]);
    rig.sql("DELETE FROM does");
    record(&host, &["e", "f", "g", "h"]);
    assert_eq!(noted(&rig), "0 0 1 1 0 0 0 0");
    assert_eq!(rig.postgres.psql("SELECT count(DISTINCT pid) FROM noted"), "2");
    assert_eq!(host.0.count(), (0, 1));
    is_recorded_once(&rig, 8);
}

/// It ends like a connection that dies there: nothing of the receipt is on record. Whoever insists
/// gets it there without the turn.
#[test]
fn a_turn_whose_receipt_meets_a_lost_statement_leaves_nothing_half() {
    let rig = watched(PostgresRig::shared());
    let host = host(&rig, &rig.postgres.url_socket(), Prepare::Auto, None);
    let mail = mail("d");
    let recorded = host.record(&mail, &[inbox()]);
    let own = claimed(&recorded.copies[0]);
    let others = record(&host, &["a", "b", "c"]);
    let (receipt, facts) = (uid(9), CopyFacts::default());
    let end = AttemptEnd { text: format!("stored {} {receipt}", inbox()), ..delivered() };
    let one = ToConfirm {
        claim: own,
        receipt: &receipt,
        facts,
        end: Some((recorded.attempt, &end)),
        may_be_lost: false,
    };
    for claim in &others {
        assert_eq!(host.confirm(claim, &uid(1)), Confirmed::Recorded);
    }
    rig.sql(LOSES);
    record(&host, &["loses"]);
    let turn = host.turn(&own, &copy_key(&mail, &inbox()));
    assert_eq!(turn, OURS);
    let refused = turn.try_confirm_of(&one, soon());
    assert!(
        matches!(&refused, Err(LedgerError::Unavailable(why)) if why.starts_with("26000")),
        "{refused:?}"
    );
    let rows = format!(
        "SELECT count(*) FROM onedrop_copy c WHERE c.id = {} AND c.placed_at IS NULL
           AND c.receipt IS NULL AND c.recipient IS NOT NULL AND c.attempt_ms IS NULL",
        own.copy
    );
    assert_eq!(rig.postgres.psql(&rows), "1", "nothing of it");
    let another = Host::of(&rig);
    assert_eq!(another.turn_when_free(&own, &copy_key(&mail, &inbox())), OURS);
    assert_eq!(host.0.confirm(&one, soon()).expect("confirm"), Confirmed::Recorded);
    let turn = another.turn_when_free(&own, &copy_key(&mail, &inbox()));
    assert_eq!(turn, TurnState::Placed(receipt.clone()));
}
