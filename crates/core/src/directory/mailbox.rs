//! Names of mailboxes, as an administrator writes them or an address carries them. They become
//! parts of IMAP commands and names of folders: what could lead out of an account's mailboxes, or
//! means something to a server's LIST, names none.

/// Longest name, in bytes: it is to fit into a folder's name.
const LONGEST: usize = 200;

/// The mailbox that `text` names, `/` between its levels; `None` if it cannot name one. INBOX is
/// INBOX in any case (RFC 3501 section 5.1), every other name is as it is written.
pub fn mailbox_name(text: &str) -> Option<String> {
    let is_unfit = |c: char| c.is_control() || matches!(c, '*' | '%' | '\\');
    let is_level = |level: &str| !matches!(level, "" | "." | "..");
    let fits = (1..=LONGEST).contains(&text.len())
        && !text.contains(is_unfit)
        && !text.starts_with(['~', '.'])
        && text.trim() == text
        && text.split('/').all(is_level);
    let (first, rest) = text.split_at(text.find('/').unwrap_or(text.len()));
    let first = if first.eq_ignore_ascii_case("INBOX") { "INBOX" } else { first };
    fits.then(|| format!("{first}{rest}"))
}

/// The mailbox that the detail of an address names: one on the top level. Whoever writes an address
/// may not use what separates levels somewhere (`/` and `.`): it could lead into what others share
/// with the account. Nor what separates copies in what is said of a delivery (`;`).
pub fn detail_mailbox(detail: &str) -> Option<String> {
    mailbox_name(detail).filter(|name| !name.contains(['/', '.', ';']))
}
