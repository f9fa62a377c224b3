//! Statements that are kept prepared, and a server or a pooler that loses them: every message
//! arrives once, none waits for it, and the log says so once.

use std::thread;

use crate::support::letters::{ANN, from_ann};
use crate::support::lmtp::Lmtp;
use crate::support::lmtp_client::{LmtpClient, Reply};
use crate::support::pgbouncer::PgBouncer;
use crate::support::postgres::Postgres;
use crate::support::site::Site;

const WARNING: &str = "the ledger's server has lost a prepared statement (";

fn deliver(client: &mut LmtpClient, name: &str) {
    let replies = client.deliver(ANN, &["scuba@mail.axial.net"], from_ann(name)).expect("replies");
    assert!(replies.iter().all(Reply::is_ok), "{name}: {replies:?}");
}

fn warnings(lmtp: &Lmtp) -> usize {
    lmtp.log().matches(WARNING).count()
}

#[test]
fn statements_that_a_server_loses_cost_one_line_in_the_log() {
    let (site, postgres) = (Site::embedded(), Postgres::shared());
    let ledger = format!("ledger.url = \"{}\"\n", postgres.url_socket());
    let lmtp = site.server(&ledger);
    let mut client = lmtp.client();
    let names: Vec<String> = (0..16).map(|number| format!("lost.{number}")).collect();
    let (before, after) = names.split_at(5);
    before.iter().for_each(|name| deliver(&mut client, name));
    assert_eq!(warnings(&lmtp), 0, "{}", lmtp.log());
    // From here on with each message.
    postgres.psql(
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN NULL; END $$;
         CREATE TRIGGER lose AFTER INSERT ON onedrop_message FOR EACH ROW EXECUTE FUNCTION lose()",
    );
    after.iter().for_each(|name| deliver(&mut client, name));
    assert_eq!(warnings(&lmtp), 1, "{}", lmtp.log());
    site.inbox_has("scuba", names.iter().map(|name| from_ann(name)));
}

/// A site may have set that by mistake.
#[test]
fn a_pooler_that_keeps_no_statements_costs_one_line_where_they_are_always_prepared() {
    const CLIENTS: usize = 8;
    const MESSAGES: usize = 12;
    let (site, postgres) = (Site::embedded(), Postgres::shared());
    let bouncer = PgBouncer::shared(&postgres);
    let lmtp =
        site.server(&format!("[ledger]\nurl = \"{}\"\nprepare = \"always\"\n", bouncer.url()));
    let name = |client: usize, number: usize| format!("always.{client}.{number}");
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let lmtp = &lmtp;
            scope.spawn(move || {
                let mut connection = lmtp.client();
                (0..MESSAGES).for_each(|number| deliver(&mut connection, &name(client, number)));
            });
        }
    });
    assert_eq!(warnings(&lmtp), 1, "{}", lmtp.log());
    let all = (0..CLIENTS).flat_map(|client| (0..MESSAGES).map(move |n| name(client, n)));
    site.inbox_has("scuba", all.map(|name| from_ann(&name)));
}
