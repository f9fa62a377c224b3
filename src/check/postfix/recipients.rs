//! Whether Postfix knows the recipients of the domains that it routes to onedrop. Mail for unknown
//! recipients that Postfix accepts waits for days, gets a new mailbox, or is returned to a sender
//! that is often forged.
//!
//! Sources: postconf(5), ADDRESS_VERIFICATION_README, ADDRESS_CLASS_README.

use super::{Advice, ExpectedPostfix, Level, Setup, routes};
use crate::config::{Config, StoreUrl};

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

pub(super) fn judged(setup: &Setup, ours: &ExpectedPostfix) -> Vec<Advice> {
    let Some(config) = &ours.config else { return Vec::new() };
    let asks_first =
        setup.value("smtpd_recipient_restrictions").contains("reject_unverified_recipient");
    if asks_first {
        return Vec::new();
    }
    let routes = routes::to_us(setup);
    let of_ours = TABLES.iter().filter(|(route, domains, _)| {
        routes.iter().any(|ours| ours == route) && !setup.value(domains).is_empty()
    });
    of_ours.filter_map(|(_, domains, table)| anybody(setup, config, domains, table)).collect()
}

fn anybody(setup: &Setup, config: &Config, domains: &str, table: &str) -> Option<Advice> {
    let maps = setup.value(table);
    let knows_all = |map: &str| map.starts_with("static:");
    let how = if maps.is_empty() {
        format!("{table} is empty")
    } else if maps.split([',', ' ', '\t']).any(knows_all) {
        format!("{table} = {maps} finds every address")
    } else if setup.value("smtpd_reject_unlisted_recipient") == "no" {
        "smtpd_reject_unlisted_recipient = no".to_owned()
    } else {
        return None;
    };
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
    let text = format!(
        "{how}: Postfix takes mail for any address in {domains}; {then}; name the recipients in \
         {table}, or use reject_unverified_recipient"
    );
    Some((Level::Warning, text))
}
