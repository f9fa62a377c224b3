//! Whether the directory knows the domains that Postfix routes to onedrop; mail for other domains
//! is returned. Only domains written in main.cf are checked, tables are not read.

use super::{ExpectedPostfix, Setup, routes};
use crate::check::finding::Remarks;
use crate::directory::Directory;

/// The domains of a route.
const LISTS: [(&str, &str); 3] = [
    ("virtual_transport", "virtual_mailbox_domains"),
    ("local_transport", "mydestination"),
    ("mailbox_transport", "mydestination"),
];

/// Domains in the text.
const SHOWN: usize = 5;

pub(super) fn judged(setup: &Setup, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let Some(config) = &ours.config else { return };
    let of_ours = routes::to_us(setup);
    for (route, list) in LISTS.iter().filter(|(name, _)| of_ours.contains(name)) {
        let unknown = written_out(setup.value(list));
        let unknown: Vec<_> = unknown.filter(|one| !knows(&config.directory, one)).collect();
        // A directory that knows nobody defers, and has its own warning.
        if unknown.is_empty() || config.directory.knows_nobody() {
            continue;
        }
        let mut shown = unknown.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
        if unknown.len() > SHOWN {
            shown += &format!(" and {} more", unknown.len() - SHOWN);
        }
        remarks.warning(format!(
            "{list} has domains that [directory] does not know: {shown}; {route} leads their mail \
             to onedrop, which returns it as for unknown recipients; add them to \
             directory.domains, or take them out of {list}"
        ));
    }
}

/// The domains in a list, without tables, files, exceptions and localhost.
fn written_out(list: &str) -> impl Iterator<Item = &str> {
    let words = list
        .split([',', ' ', '\t'])
        .filter(|word| !word.is_empty() && !word.contains([':', '/', '!']));
    words.filter(|word| *word != "localhost" && !word.starts_with("localhost."))
}

fn knows(directory: &Directory, domain: &str) -> bool {
    let is_domain = |other: &str| other.eq_ignore_ascii_case(domain);
    let by_domain = directory.domains.iter().any(|ours| is_domain(ours));
    let by_account = directory
        .accounts
        .keys()
        .any(|address| address.rsplit_once('@').is_some_and(|(_, d)| is_domain(d)));
    // If there are domains, the query is for these only.
    by_domain || by_account || (directory.query.is_some() && directory.domains.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_known_by_the_list_an_account_or_a_query() {
        let mut directory = crate::config::Config::default().directory;
        directory.domains.push("a.example".to_owned());
        directory.accounts.insert("lisa@b.example".to_owned(), "lisa".to_owned());
        assert!(
            knows(&directory, "A.example")
                && knows(&directory, "b.example")
                && !knows(&directory, "c.example")
        );
        directory.query = Some("SELECT $1".to_owned());
        assert!(!knows(&directory, "c.example"), "a query is for the domains");
        directory.domains.clear();
        assert!(knows(&directory, "c.example"));
    }

    #[test]
    fn tables_and_localhost_are_passed_over() {
        let list = "a.example, hash:/etc/x  /etc/postfix/domains,!b.example localhost.a.example, \
                    localhost c.example";
        assert_eq!(written_out(list).collect::<Vec<_>>(), ["a.example", "c.example"]);
    }
}
