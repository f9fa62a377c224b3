//! Whether Postfix knows the recipients of the domains that it routes to onedrop. Mail for unknown
//! recipients that Postfix accepts waits for days, gets a new mailbox, or is returned to a sender
//! that is often forged.
//!
//! Sources: postconf(5), ADDRESS_VERIFICATION_README, ADDRESS_CLASS_README.

use super::{ExpectedPostfix, Setup, routes};
use crate::check::finding::Remarks;
use crate::config::StoreUrl;

/// The parameter that routes mail here, its domains, and the table of their recipients.
const TABLES: [(&str, &str, &str); 4] = [
    ("virtual_transport", "virtual_mailbox_domains", "virtual_mailbox_maps"),
    ("local_transport", "mydestination", "local_recipient_maps"),
    ("mailbox_transport", "mydestination", "local_recipient_maps"),
    ("relay_transport", "relay_domains", "relay_recipient_maps"),
];

/// Parameters that these rules read.
pub(super) const MAIN: [&str; 6] = [
    "local_recipient_maps",
    "relay_domains",
    "relay_recipient_maps",
    "smtpd_recipient_restrictions",
    "smtpd_reject_unlisted_recipient",
    "virtual_mailbox_maps",
];

pub(super) fn judged(setup: &Setup, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let Some(config) = &ours.config else { return };
    let asked_before = setup.value("smtpd_recipient_restrictions");
    if asked_before.contains("reject_unverified_recipient") {
        return;
    }
    let directory = &config.directory;
    let then = if directory.query.is_some() || directory.domains.is_empty() {
        "whether anybody has it shows at the delivery, and mail for nobody goes back to senders \
         who are often forged"
    } else if matches!(config.store.kind(), StoreUrl::Maildir { .. }) {
        "whatever stands before the @ gets a Maildir of its own"
    } else {
        "whether anybody has it shows at the mail server, and mail for nobody waits for days \
         (maximal_queue_lifetime)"
    };
    let routes = routes::to_us(setup);
    for (_, domains, table) in TABLES
        .iter()
        .filter(|(route, domains, _)| routes.contains(route) && !setup.value(domains).is_empty())
    {
        if let Some(how) = takes_any(setup, table) {
            remarks.warning(format!(
                "{how}: Postfix takes mail for any address in {domains}; {then}; name the \
                 recipients in {table}, or use reject_unverified_recipient"
            ));
        }
    }
}

/// Why Postfix takes any address by `table`, if it does.
fn takes_any(setup: &Setup, table: &str) -> Option<String> {
    let maps = setup.value(table);
    let knows_all = |map: &str| map.starts_with("static:");
    if maps.is_empty() {
        Some(format!("{table} is empty"))
    } else if maps.split([',', ' ', '\t']).any(knows_all) {
        Some(format!("{table} = {maps} finds every address"))
    } else {
        let name = "smtpd_reject_unlisted_recipient";
        (setup.value(name) == "no").then(|| format!("{name} = no"))
    }
}
