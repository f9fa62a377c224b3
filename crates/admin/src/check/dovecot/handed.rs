//! What Dovecot's LMTP does with copies that are handed over to it (`store.lmtp`), beside filters:
//! which quotas count, and which names of accounts it cuts, so that the copy goes to another one.
//! Accounts that stand in no configuration are not known here.
//!
//! Sources: doc/wiki of Dovecot 2.3 (LMTP, Quota); `message_detail_address_parse`.

use super::conf::Conf;
use crate::check::finding::Remarks;
use onedrop_site::config::Config;

/// Dovecot's default.
const DELIMITER: &str = "+";
/// Accounts that are named in a finding.
const MOST_NAMED: usize = 5;

/// What is wrong with it, and what cannot be found out.
pub(super) fn judge(conf: &Conf, config: &Config, remarks: &mut Remarks) {
    quotas(conf, remarks);
    cut_names(conf, config, remarks);
}

fn quotas(conf: &Conf, remarks: &mut Remarks) {
    if conf.value("lmtp", "lmtp_rcpt_check_quota") == Some("yes") {
        remarks.warning(
            "lmtp_rcpt_check_quota = yes: Dovecot refuses a full account before it has the \
             message, and the guard of store.lmtp runs after that: a copy that was stored, and is \
             handed over a second time because the answer to the first was lost, may be refused \
             as over quota; set it to no",
        );
    }
    let has = |protocol| conf.plugins(protocol).any(|plugin| plugin == "quota");
    let (with, without, what) = match (has("lmtp"), has("imap")) {
        (true, false) => ("lmtp", "imap", "copies for Sent, which go by IMAP,"),
        (false, true) => ("imap", "lmtp", "copies that are handed over"),
        (true, true) | (false, false) => return,
    };
    remarks.warning(format!(
        "the plugin quota is in mail_plugins of protocol {with} and not of protocol {without}: \
         {what} go past users' quotas; add it to protocol {without}"
    ));
}

fn cut_names(conf: &Conf, config: &Config, remarks: &mut Remarks) {
    let directory = &config.directory;
    let cuts = conf.value("lmtp", "recipient_delimiter").unwrap_or(DELIMITER);
    // Only what stands before a domain is cut.
    let local = |name: &str| name.rsplit_once('@').map_or(name, |(local, _)| local).to_owned();
    let is_cut = |name: &str| local(name).contains(|c| cuts.contains(c));
    let mend = "Dovecot's recipient_delimiter ends the name of an account there, and a copy that \
                is handed over goes to another account";
    let homes = directory.accounts.values().map(|home| home.account.as_str());
    let mut named: Vec<&str> = homes.filter(|name| is_cut(name)).collect();
    named.sort_unstable();
    named.dedup();
    if !named.is_empty() {
        let count = named.len();
        named.truncate(MOST_NAMED);
        let more = if count > named.len() { ", ..." } else { "" };
        remarks.warning(format!(
            "{count} accounts of directory.accounts contain one of {cuts:?} ({}{more}): {mend}; \
             give them other names, or Dovecot another delimiter",
            named.join(", ")
        ));
    }
    // The local part is in each of the accounts of `domains`.
    let ours = &directory.recipient_delimiter;
    let left: String = cuts.chars().filter(|c| !ours.contains(*c)).collect();
    if !directory.domains.is_empty() && !left.is_empty() {
        remarks.warning(format!(
            "directory.recipient_delimiter = {ours:?} leaves {left:?} in accounts: {mend}; give \
             both the same characters"
        ));
    }
    if directory.query.is_some() && !cuts.is_empty() {
        remarks.ok(format!(
            "not known from here: accounts that directory.query names; if one contains one of \
             {cuts:?}, {mend}"
        ));
    }
}
