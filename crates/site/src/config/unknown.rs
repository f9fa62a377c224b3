//! What to say about a key or a section that is not known: which one was probably meant.

use super::problem::shown_name;
use super::schema::{self, Key};
use super::suggest::closest;

/// What to say about a key that `section` does not have.
pub(super) fn key(section: &str, name: &str) -> String {
    let own: Vec<_> =
        schema::KEYS.iter().filter(|key| key.section() == section).map(Key::name).collect();
    let near = homes(name).or_else(|| {
        let near = closest(name, own.iter().copied());
        let near = near.or_else(|| own.iter().copied().find(|known| is_part(name, known)));
        let elsewhere = || closest(name, schema::KEYS.iter().map(Key::name)).and_then(homes);
        near.map(|known| format!("{section}.{known}")).or_else(elsewhere)
    });
    let hint = match near {
        Some(known) => format!("did you mean {known}?"),
        None => format!("known keys: {}", own.join(", ")),
    };
    format!("unknown key {section}.{} ({hint})", shown_name(name))
}

/// What to say about a name at the top level that is no section.
pub(super) fn section(name: &str) -> String {
    let shown = shown_name(name);
    if let Some(homes) = homes(name) {
        return format!("{shown} belongs to a section (did you mean {homes}?)");
    }
    let hint = match closest(name, schema::sections()) {
        Some(known) => format!("did you mean {known}?"),
        None => format!("known sections: {}", schema::sections().collect::<Vec<_>>().join(", ")),
    };
    format!("unknown section {shown} ({hint})")
}

/// The keys with this name, in whichever section.
fn homes(name: &str) -> Option<String> {
    let homes: Vec<_> =
        schema::KEYS.iter().filter(|key| key.name() == name).map(|key| key.full).collect();
    (!homes.is_empty()).then(|| homes.join(" or "))
}

/// `password` for `password_file`, `deadline` for `deadline_secs`.
fn is_part(name: &str, known: &str) -> bool {
    !name.is_empty() && known.split('_').any(|part| part.eq_ignore_ascii_case(name))
}
