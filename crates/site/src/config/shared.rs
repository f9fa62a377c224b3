//! The keys whose values decide who a message and a copy are: all hosts of a ledger must have them
//! alike. Of `store.url` it is the place: another port or encryption is the same server, and a name
//! of this host is `localhost`.

use std::collections::BTreeSet;

use super::{Config, StoreUrl};
use crate::filing::FileRule;
use onedrop_core::directory::Detail;
use onedrop_core::ledger::SharedConfig;
use onedrop_core::message::DedupBy;
use onedrop_net::is_loopback;

impl Config {
    /// What the ledger compares with that of other hosts.
    pub fn shared(&self) -> SharedConfig {
        let by = match self.dedup.by {
            DedupBy::Content => "content",
            DedupBy::MessageId => "message-id",
        };
        let detail = match self.directory.detail {
            Detail::Ignore => "ignore",
            Detail::Mailbox => "mailbox",
        };
        SharedConfig::new([
            ("dedup.by", by.to_owned()),
            ("dedup.filter_fields", names(&self.dedup.filter_fields)),
            ("directory.account", self.directory.account.to_string()),
            ("directory.detail", detail.to_owned()),
            ("file", rules(&self.file)),
            ("sent.mailbox", self.sent.mailbox.clone()),
            // A site with IMAP alone would not find what another has handed over and a filter has
            // filed elsewhere.
            ("store.lmtp", if self.store.lmtp.is_some() { "yes" } else { "no" }.to_owned()),
            ("store.url", place(&self.store.url)),
        ])
    }
}

/// Names as they are compared: their order means nothing.
fn names(names: &[String]) -> String {
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    Vec::from_iter(names).join(" ")
}

/// Rules as they are compared: case of fields and values means nothing.
fn rules(rules: &[FileRule]) -> String {
    let rule = |one: &FileRule| {
        let FileRule { header, is, mailbox } = one;
        [header.to_ascii_lowercase(), is.to_lowercase(), mailbox.clone()]
    };
    serde_json::json!(rules.iter().map(rule).collect::<Vec<_>>()).to_string()
}

fn place(store: &StoreUrl) -> String {
    match store {
        StoreUrl::Maildir { .. } => store.to_string(),
        StoreUrl::Imap { host, .. } if is_loopback(host) => "imap://localhost".to_owned(),
        StoreUrl::Imap { host, .. } => format!("imap://{}", host.to_ascii_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_store_the_place_counts() {
        let place = |url: &str| place(&url.parse().unwrap());
        for url in ["imap://Mail.example", "imaps://mail.example", "imaps://mail.example:994"] {
            assert_eq!(place(url), "imap://mail.example");
        }
        for url in ["imap://127.0.0.1:1143", "imaps://localhost", "imap://[::1]"] {
            assert_eq!(place(url), "imap://localhost");
        }
        assert_eq!(place("maildir:///m/{domain}/{local}"), "maildir:///m/{domain}/{local}");
    }

    #[test]
    fn it_is_what_decides_and_nothing_else() {
        let config = Config::default();
        let expected = r#"{"dedup.by":"content","dedup.filter_fields":"auto-submitted list-id "#
            .to_owned()
            + r#"precedence x-spam x-spam-flag x-spam-status","directory.account":"{local}","#
            + r#""directory.detail":"ignore","file":"[]","#
            + r#""sent.mailbox":"Sent","store.lmtp":"no","#
            + r#""store.url":"maildir:///var/lib/onedrop/mail"}"#;
        assert_eq!(config.shared().json(), expected);
        let mut other = config.clone();
        (other.lock.lease_secs, other.ledger.keep_raw) = (77, true);
        assert_eq!(other.shared(), config.shared());
    }
}
