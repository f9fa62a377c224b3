//! Domains as they are compared. An international one has a form in Unicode, in which accents may
//! be written in two ways, and one in ASCII (RFC 5890: xn--...); a trailing dot means nothing.

use std::borrow::Cow;

/// Whether two names are one domain.
pub fn is_same_domain(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other) || ascii_domain(one) == ascii_domain(other)
}

/// The form in ASCII and in lower case; a name that has none is only put in lower case.
pub fn ascii_domain(domain: &str) -> String {
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    match is_international(domain) {
        true => idna::domain_to_ascii_cow(domain.as_bytes(), idna::AsciiDenyList::EMPTY)
            .map_or_else(|_| domain.to_lowercase(), Cow::into_owned),
        false => domain.to_ascii_lowercase(),
    }
}

/// Whether there may be another form.
pub fn is_international(domain: &str) -> bool {
    !domain.is_ascii() || domain.to_ascii_lowercase().contains("xn--")
}
