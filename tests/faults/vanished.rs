//! A server that has vanished without a word, as in a power cut or where a firewall has forgotten
//! its connections: `onedrop lmtp` notices it in the sessions that it has kept, and delivers in new
//! ones.

use std::thread;
use std::time::Duration;

use crate::host::{Host, free_net, servers};
use crate::support::TempRoot;
use crate::support::letters::{self, ANN, from_ann};
use crate::support::lmtp::Launch;
use crate::support::lmtp_client::Reply;

const ALL: [&str; 3] = ["scuba@axial.net", "doug@axial.net", "lisa@axial.net"];
/// An IMAP session that was idle for less is not asked whether it is still there.
const IDLE: Duration = Duration::from_secs(3);

#[test]
fn kept_sessions_with_servers_that_vanished_cost_no_delivery() {
    let (root, net) = (TempRoot::new(), free_net());
    let hosts = [Host::start(&root, 0, net)];
    let site = servers(&hosts, root, net, "[directory]\ndomains = [\"axial.net\"]\n");
    let host = &hosts[0];
    let launch = Launch::of(&host.folder.join("onedrop.toml")).bare();
    let lmtp = launch.by(&host.entrance()).start();
    let mut client = lmtp.client();
    let mut deliver = |name: &str, to: &[&str]| {
        let replies = client.deliver(ANN, to, from_ann(name)).expect("replies");
        assert!(replies.iter().all(Reply::is_ok), "{name}: {replies:?}");
    };
    // The first call in a ledger's session is another one for several recipients: there a helper
    // takes a turn in it.
    for (name, to) in [("several", &ALL[..]), ("one", &ALL[..1])] {
        deliver(&format!("{name}-before"), &ALL);
        thread::sleep(IDLE);
        let forgotten = host.forget_connections();
        let servers = forgotten.ports.len();
        assert!(servers >= 4, "{servers} connections");
        deliver(&format!("{name}-after"), to);
    }
    let all = ["several-before", "several-after", "one-before"].map(from_ann);
    for account in ["doug", "lisa"] {
        letters::stand_in(&site.dovecot, account, "INBOX", &all);
    }
    let scubas = all.into_iter().chain([from_ann("one-after")]);
    letters::stand_in(&site.dovecot, "scuba", "INBOX", scubas);
}
