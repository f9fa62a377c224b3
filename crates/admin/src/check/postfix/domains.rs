//! The domains that Postfix routes to onedrop: whether the directory knows them, since mail for
//! others is returned; and whether Postfix knows their recipients, since mail for unknown ones that
//! it accepts waits for days, gets a new mailbox, or is returned to a sender that is often forged.
//! Only domains written in main.cf are checked, tables are not read.
//!
//! Sources: postconf(5), ADDRESS_VERIFICATION_README, ADDRESS_CLASS_README.

use super::{ExpectedPostfix, Setup, routes};
use crate::check::finding::Remarks;
use onedrop_core::directory::{Directory, is_same_domain};
use onedrop_core::outcome::UnknownAccount;
use onedrop_site::config::{Config, StoreUrl};

/// The parameter that routes mail here, its domains, and the table of their recipients.
const TABLES: [(&str, &str, &str); 4] = [
    ("virtual_transport", "virtual_mailbox_domains", "virtual_mailbox_maps"),
    ("local_transport", "mydestination", "local_recipient_maps"),
    ("mailbox_transport", "mydestination", "local_recipient_maps"),
    ("relay_transport", RELAY_DOMAINS, "relay_recipient_maps"),
];

/// Their domains are not compared with the directory.
const RELAY_DOMAINS: &str = "relay_domains";

const RESTRICTIONS: &str = "smtpd_recipient_restrictions";
const REJECT_UNLISTED: &str = "smtpd_reject_unlisted_recipient";

/// Domains in the text.
const SHOWN: usize = 5;

/// Parameters that these rules read.
pub(super) fn parameters() -> impl Iterator<Item = &'static str> {
    let of_tables = TABLES.iter().flat_map(|(_, domains, table)| [*domains, *table]);
    of_tables.chain([RESTRICTIONS, REJECT_UNLISTED])
}

pub(super) fn judged(setup: &Setup, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let Some(config) = &ours.config else { return };
    let routes = routes::to_us(setup);
    let tables = || TABLES.iter().filter(|(route, ..)| routes.contains(route));
    // A directory without accounts defers, and has its own warning.
    if !config.directory.knows_nobody() {
        for (route, list, _) in tables().filter(|(_, list, _)| *list != RELAY_DOMAINS) {
            unknown_domains(setup, &config.directory, route, list, remarks);
        }
    }
    if !setup.value(RESTRICTIONS).contains("reject_unverified_recipient") {
        for (_, list, table) in tables().filter(|(_, list, _)| !setup.value(list).is_empty()) {
            unknown_recipients(setup, config, list, table, remarks);
        }
    }
}

fn unknown_domains(
    setup: &Setup,
    directory: &Directory,
    route: &str,
    list: &str,
    remarks: &mut Remarks,
) {
    let domains = words(setup.value(list)).filter(|word| !word.contains([':', '/', '!']));
    let domains = domains.filter(|word| *word != "localhost" && !word.starts_with("localhost."));
    let unknown: Vec<_> = domains.filter(|domain| !knows(directory, domain)).collect();
    if unknown.is_empty() {
        return;
    }
    let mut shown = unknown[..unknown.len().min(SHOWN)].join(", ");
    if unknown.len() > SHOWN {
        shown += &format!(" and {} more", unknown.len() - SHOWN);
    }
    remarks.warning(format!(
        "{list} has domains that [directory] does not know: {shown}; {route} leads their mail to \
         onedrop, which returns it as for unknown recipients; add them to directory.domains, or \
         take them out of {list}"
    ));
}

fn knows(directory: &Directory, domain: &str) -> bool {
    let is_domain = |other: &str| is_same_domain(other, domain);
    let mut addresses = directory.accounts.keys().filter_map(|address| address.rsplit_once('@'));
    directory.domains.iter().any(|ours| is_domain(ours))
        || addresses.any(|(_, other)| is_domain(other))
        // If there are domains, query and userdb are for these only.
        || (asks(directory) && directory.domains.is_empty())
}

fn asks(directory: &Directory) -> bool {
    directory.query.is_some() || directory.userdb.is_some()
}

fn unknown_recipients(
    setup: &Setup,
    config: &Config,
    list: &str,
    table: &str,
    remarks: &mut Remarks,
) {
    let maps = setup.value(table);
    let how = if maps.is_empty() {
        format!("{table} is empty")
    } else if words(maps).any(|map| map.starts_with("static:")) {
        format!("{table} = {maps} finds every address")
    } else if setup.value(REJECT_UNLISTED) == "no" {
        format!("{REJECT_UNLISTED} = no")
    } else {
        return;
    };
    let directory = &config.directory;
    let is_listed = asks(directory) || directory.domains.is_empty();
    let is_maildir = matches!(config.store.kind(), StoreUrl::Maildir { .. });
    let then = match directory.unknown_account {
        _ if !is_listed && is_maildir && config.deliver.trial => {
            "whatever stands before the @ gets a Maildir of its own (deliver.trial)"
        }
        UnknownAccount::Defer if !is_listed => {
            "whether anybody has it shows at the delivery, and mail for nobody waits for days \
             (maximal_queue_lifetime)"
        }
        UnknownAccount::Defer | UnknownAccount::Reject => {
            "whether anybody has it shows at the delivery, and mail for nobody goes back to \
             senders who are often forged"
        }
    };
    remarks.warning(format!(
        "{how}: Postfix takes mail for any address in {list}; {then}; name the recipients in \
         {table}, or use reject_unverified_recipient"
    ));
}

/// The words of a list.
fn words(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ' ', '\t']).filter(|word| !word.is_empty())
}
