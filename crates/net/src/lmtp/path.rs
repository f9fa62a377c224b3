//! The path of MAIL or RCPT (RFC 5321 section 4.1.2), read as generously as can be without a doubt
//! about what is meant: whatever address Postfix has must come through, as it does by pipe(8).
//! lmtp(8) writes its own form of an address between angle brackets, the local part in quotes where
//! RFC 821 wants it so (quote_821_local.c in Postfix's sources; not at all with
//! lmtp_quote_rfc821_envelope = no); what is read back is that form, which pipe(8) hands over.

/// Reads the path at the start of `text`: the address as it is meant, without quotes, brackets and
/// source route (empty for `<>`), and what follows the path.
pub fn read(text: &str) -> Option<(String, &str)> {
    let inside = text.trim_ascii_start().strip_prefix('<')?;
    let (mut address, mut is_quoted) = (String::new(), false);
    // Whether the last @ so far, which is where the domain begins, stood within quotes.
    let mut last_at_is_quoted = false;
    let mut chars = inside.char_indices();
    while let Some((at, c)) = chars.next() {
        let c = match c {
            '"' => {
                is_quoted = !is_quoted;
                continue;
            }
            '\\' if is_quoted => chars.next()?.1,
            // Any other bracket is a part of an address that should have been quoted.
            '>' if !is_quoted
                && matches!(inside.as_bytes().get(at + 1), None | Some(b' ' | b'\t')) =>
            {
                let is_whole = !last_at_is_quoted;
                return is_whole.then(|| (without_route(inside, address), &inside[at + 1..]));
            }
            c => c,
        };
        match c {
            '\0' => return None,
            '@' => last_at_is_quoted = is_quoted,
            _ => {}
        }
        address.push(c);
    }
    None
}

/// Without a source route (`@relay,@other:`), which is to be ignored (RFC 5321 appendix C).
fn without_route(inside: &str, address: String) -> String {
    match address.split_once(':') {
        Some((route, rest))
            if inside.starts_with('@') && route.split(',').all(|hop| hop.starts_with('@')) =>
        {
            rest.to_owned()
        }
        _ => address,
    }
}

/// `address` as a path (RFC 5321 section 4.1.2): the local part is quoted where it has to be, as
/// pipe(8) gives it unquoted.
pub fn written(address: &str) -> Option<String> {
    if address.eq_ignore_ascii_case("postmaster") {
        return Some(format!("<{address}>"));
    }
    let (local, domain) = address.rsplit_once('@')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || !c.is_ascii();
    let literal = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    let is_literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let says_domain =
        is_literal.map_or_else(|| domain.chars().all(plain), |inside| inside.chars().all(literal));
    if domain.is_empty() || local.is_empty() || !says_domain {
        return None;
    }
    Some(format!("<{}@{domain}>", local_part(local)))
}

/// A local part, in quotes where it has to be.
fn local_part(local: &str) -> String {
    let atom =
        |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    if local.split('.').all(|word| !word.is_empty() && word.chars().all(atom)) {
        return local.to_owned();
    }
    format!("\"{}\"", local.replace('\\', "\\\\").replace('"', "\\\""))
}

/// `${sender}` for the null sender, unless pipe(8)'s attribute `null_sender` says otherwise.
const PIPES_NULL_SENDER: &str = "MAILER-DAEMON";

/// An envelope's sender as a path: `<>` for the null sender, whichever name it has.
pub fn of_sender(sender: &str) -> Option<String> {
    match sender.is_empty() || sender.eq_ignore_ascii_case(PIPES_NULL_SENDER) {
        true => Some("<>".to_owned()),
        false => written(sender),
    }
}

/// An account's name as a path, which needs no domain (RFC 2033 section 5 leaves local names to the
/// server); `None` for what no path can say.
pub fn of_account(name: &str) -> Option<String> {
    if name.is_empty() || name.chars().any(char::is_control) {
        return None;
    }
    if let Some(path) = written(name) {
        return Some(path);
    }
    Some(format!("<{}>", local_part(name)))
}
