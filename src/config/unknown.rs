//! What to say about a key or a section that is not known: which one was probably meant.

use super::problem::shown_name;
use super::schema::{self, Key};
use super::suggest::closest;

/// What to say about a key that `section` does not have.
pub(super) fn key(section: &str, name: &str) -> String {
    let shown = format!("{section}.{}", shown_name(name));
    let elsewhere: Vec<_> =
        schema::KEYS.iter().filter(|key| key.name() == name).map(|key| key.full).collect();
    if !elsewhere.is_empty() {
        return format!("unknown key {shown} (did you mean {}?)", elsewhere.join(" or "));
    }
    let own: Vec<_> = schema::KEYS.iter().filter(|key| key.section() == section).collect();
    let near = closest(name, own.iter().map(|key| key.name()))
        .or_else(|| own.iter().map(|key| key.name()).find(|known| is_part(name, known)))
        .map(|known| format!("{section}.{known}"))
        .or_else(|| elsewhere_by_distance(name));
    match near {
        Some(known) => format!("unknown key {shown} (did you mean {known}?)"),
        None => {
            let names: Vec<_> = own.iter().map(|key| key.name()).collect();
            format!("unknown key {shown} (known keys: {})", names.join(", "))
        }
    }
}

/// What to say about a name at the top level that is no section.
pub(super) fn section(name: &str) -> String {
    let shown = shown_name(name);
    let homes: Vec<_> =
        schema::KEYS.iter().filter(|key| key.name() == name).map(|key| key.full).collect();
    if !homes.is_empty() {
        return format!("{shown} belongs to a section (did you mean {}?)", homes.join(" or "));
    }
    match closest(name, schema::sections()) {
        Some(known) => format!("unknown section {shown} (did you mean {known}?)"),
        None => {
            let known: Vec<_> = schema::sections().collect();
            format!("unknown section {shown} (known sections: {})", known.join(", "))
        }
    }
}

fn elsewhere_by_distance(name: &str) -> Option<String> {
    let known = closest(name, schema::KEYS.iter().map(Key::name))?;
    let homes: Vec<_> =
        schema::KEYS.iter().filter(|key| key.name() == known).map(|key| key.full).collect();
    Some(homes.join(" or "))
}

/// `password` for `password_file`, `deadline` for `deadline_secs`.
fn is_part(name: &str, known: &str) -> bool {
    !name.is_empty() && known.split('_').any(|part| part.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_another_section_is_named_with_it() {
        assert_eq!(key("ledger", "user"), "unknown key ledger.user (did you mean store.user?)");
        assert_eq!(
            key("sent", "url"),
            "unknown key sent.url (did you mean ledger.url or store.url?)"
        );
        assert_eq!(
            key("sent", "lease_sec"),
            "unknown key sent.lease_sec (did you mean lock.lease_secs?)"
        );
    }

    #[test]
    fn a_part_of_a_name_finds_the_whole() {
        assert_eq!(
            key("ledger", "password"),
            "unknown key ledger.password (did you mean ledger.password_file?)"
        );
    }
}
