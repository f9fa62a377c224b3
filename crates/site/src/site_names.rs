//! The names that this site calls its own: by them Onedrop distinguishes the Received that its
//! Postfix has written from one that came with the message. They are this host's, Postfix'
//! `myhostname` and `mydestination` as main.cf says them, `directory.domains` with all hosts in
//! them, and `dedup.received_by`. A name too many costs nothing: only who hands mail over writes
//! above what senders have written. One too few makes every message look back.
//!
//! main.cf is read here, once for a configuration, because a delivery must not run postconf for
//! each mail. What it does not say (a table, a condition, another instance's main.cf) is left out,
//! and `onedrop check`, which asks postconf, names what is missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::config::Config;

/// The names by which this site calls its own hosts, in lower case.
#[derive(Debug, Clone, Default)]
pub struct SiteNames {
    names: Vec<String>,
    /// Hosts in them count as well.
    domains: Vec<String>,
}

impl SiteNames {
    /// Of the host called `host`.
    fn new(host: &str, domains: &[String], named: &[String], main_cf: &str) -> SiteNames {
        let mut names: Vec<String> = named.to_vec();
        names.extend(of_postfix(host, main_cf));
        names.push(host.to_lowercase());
        names.sort();
        names.dedup();
        // `mx1` may write itself as `mx1.example.net`.
        SiteNames { names, domains: domains.to_vec() }
    }

    /// Whether the site calls a host so.
    pub fn has(&self, by: &str) -> bool {
        let by = by.trim_end_matches('.').to_lowercase();
        let is_in = |domain: &String| {
            by.strip_suffix(domain.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let is_short_for = |name: &&String| !name.contains('.') && name.as_str() != "localhost";
        let first = by.split('.').next().unwrap_or_default();
        self.names.contains(&by)
            || self.domains.iter().any(is_in)
            || self.names.iter().filter(is_short_for).any(|name| name == first)
    }
}

/// Those of this host, under a configuration, with the Postfix that runs us, or else the host's.
pub fn of(config: &Config, host: &str) -> SiteNames {
    let folder = std::env::var_os("MAIL_CONFIG").map(PathBuf::from);
    in_folder(config, host, folder.as_deref().unwrap_or(Path::new("/etc/postfix")))
}

/// The names as [`of`] finds them, with the Postfix whose main.cf is in `folder`; there may be
/// none.
pub fn in_folder(config: &Config, host: &str, folder: &Path) -> SiteNames {
    let main_cf = std::fs::read_to_string(folder.join("main.cf")).unwrap_or_default();
    let (domains, named) = (&config.directory.addresses.domains, &config.dedup.received_by);
    SiteNames::new(host, domains, named, &main_cf)
}

/// `myhostname` and what `mydestination` names.
fn of_postfix(host: &str, main_cf: &str) -> Vec<String> {
    let mut values = parameters(main_cf);
    if values.is_empty() {
        return Vec::new();
    }
    values.entry("myhostname".to_owned()).or_insert_with(|| host.to_owned());
    let own = expanded("$myhostname", &values, 0);
    let domain = own.split_once('.').map_or("localdomain", |(_, domain)| domain).to_owned();
    values.entry("mydomain".to_owned()).or_insert(domain);
    let local = "$myhostname, localhost.$mydomain, localhost";
    values.entry("mydestination".to_owned()).or_insert_with(|| local.to_owned());
    let all = expanded("$mydestination", &values, 0);
    let names = all.split([',', ' ', '\t', '\n', '\r']).chain([own.as_str()]);
    // What has these characters is a table, or was not understood.
    let is_name = |name: &&str| !name.is_empty() && !name.contains(['/', ':', '$', '{', '(']);
    names.filter(is_name).map(str::to_lowercase).collect()
}

/// Each parameter's last value, as postconf(5) says: a line that begins with a blank continues the
/// one before it.
fn parameters(main_cf: &str) -> BTreeMap<String, String> {
    let mut values: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None;
    for line in main_cf.lines() {
        match line.trim_start() {
            "" => {}
            text if text.starts_with('#') => {}
            text if text.len() < line.len() => {
                let value = last.as_ref().and_then(|name| values.get_mut(name));
                value.into_iter().for_each(|value: &mut String| {
                    value.push(' ');
                    value.push_str(text.trim_end());
                });
            }
            text => {
                last = text.split_once('=').map(|(name, value)| {
                    values.insert(name.trim().to_owned(), value.trim().to_owned());
                    name.trim().to_owned()
                });
            }
        }
    }
    values
}

/// `text` with `$name`, `${name}` and `$(name)` as their values; conditions stay as they are.
fn expanded(text: &str, values: &BTreeMap<String, String>, depth: u8) -> String {
    let Some((before, rest)) = text.split_once('$').filter(|_| depth < 10) else {
        return text.to_owned();
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (inner, closing) = match rest.chars().next() {
        Some('{') => (&rest[1..], "}"),
        Some('(') => (&rest[1..], ")"),
        _ => (rest, ""),
    };
    let (name, after) = inner.split_at(inner.find(|c| !is_part(c)).unwrap_or(inner.len()));
    match (values.get(name), after.strip_prefix(closing)) {
        (Some(value), Some(after)) => {
            let value = expanded(value, values, depth + 1);
            format!("{before}{value}{}", expanded(after, values, depth + 1))
        }
        _ => format!("{before}${}", expanded(rest, values, depth + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN_CF: &str = "# comment\nmyhostname = old.example\nmyhostname = MX1.site.example\n\
         mydestination = $myhostname, ${mydomain}\n# between\n\tpost.example hash:/etc/x,\n\
         \x20 $nothing\n";

    #[test]
    fn what_postfix_calls_itself_is_its_own() {
        let names = SiteNames::new("box", &["users.example".to_owned()], &[], MAIN_CF);
        for own in [
            "mx1.site.example",
            "MX1.SITE.EXAMPLE.",
            "site.example",
            "post.example",
            "users.example",
            "mail.users.example",
            "box",
            "box.anywhere.example",
        ] {
            assert!(names.has(own), "{own}: {names:?}");
        }
        for other in
            ["old.example", "otherusers.example", "mx2.site.example", "boxes", "", "$nothing"]
        {
            assert!(!names.has(other), "{other}: {names:?}");
        }
    }

    #[test]
    fn what_main_cf_leaves_out_has_postfix_defaults() {
        let names = SiteNames::new("mx.site.example", &[], &[], "mynetworks = 127.0.0.0/8\n");
        for own in ["mx.site.example", "localhost.site.example", "localhost"] {
            assert!(names.has(own), "{own}: {names:?}");
        }
        let none = SiteNames::new("mx.site.example", &[], &["relay.example".to_owned()], "");
        assert!(none.has("relay.example") && none.has("mx.site.example"));
        assert!(!none.has("localhost"));
        // Parameters that name each other end somewhere.
        SiteNames::new("mx", &[], &[], "myhostname = $mydomain\nmydomain = a.$myhostname\n");
    }
}
