//! What `doveconf -n` prints (2.3 and 2.4): `name = value`, sections in braces, comments. By hand:
//! the format has no description but Dovecot's own writer, and no crate reads it. Whatever does not
//! look like it is passed over.

use std::collections::BTreeMap;

/// Deeper sections are ignored.
const DEEPEST: usize = 16;

/// A configuration: settings, and sections by the words before their brace.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Conf {
    settings: BTreeMap<String, String>,
    sections: BTreeMap<String, Conf>,
}

impl Conf {
    /// Reads doveconf's output; the last setting of a name counts.
    pub fn read(output: &str) -> Conf {
        let mut conf = Conf::default();
        // The names of the sections that are open.
        let mut open: Vec<String> = Vec::new();
        for line in output.lines().map(str::trim) {
            if line == "}" {
                open.pop();
            } else if let Some((name, value)) = setting(line) {
                if let Some(section) = conf.section(&open) {
                    section.settings.insert(name.to_owned(), unquoted(value).to_owned());
                }
            } else if let Some(words) = line.strip_suffix('{').filter(|_| !line.starts_with('#')) {
                let words = words.replace('"', "");
                open.push(words.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        conf
    }

    /// The section of this name within those, created if missing.
    fn section(&mut self, path: &[String]) -> Option<&mut Conf> {
        if path.len() > DEEPEST {
            return None;
        }
        Some(path.iter().fold(self, |conf, name| conf.sections.entry(name.clone()).or_default()))
    }

    /// A setting within sections.
    pub fn setting(&self, path: &[&str], name: &str) -> Option<&str> {
        let section = path.iter().try_fold(self, |conf, section| conf.sections.get(*section))?;
        section.settings.get(name).map(String::as_str)
    }

    /// A setting as a protocol sees it: its own, or the global one.
    pub fn value(&self, protocol: &str, name: &str) -> Option<&str> {
        let own = self.setting(&[&format!("protocol {protocol}")], name);
        own.or_else(|| self.setting(&[], name))
    }

    /// The mail plugins of a protocol: a list of words (2.3), or a section of switches (2.4).
    pub fn plugins(&self, protocol: &str) -> impl Iterator<Item = &str> {
        const NAME: &str = "mail_plugins";
        let words = self.value(protocol, NAME).unwrap_or_default().split([' ', ',', '\t']);
        let own = self.sections.get(&format!("protocol {protocol}"));
        let switches =
            [Some(self), own].into_iter().flatten().filter_map(|conf| conf.sections.get(NAME));
        let mut on: BTreeMap<&str, bool> = BTreeMap::new();
        for (name, value) in switches.flat_map(|section| &section.settings) {
            on.insert(name, value == "yes");
        }
        let on = on.into_iter().filter_map(|(name, is_on)| is_on.then_some(name));
        words.filter(|word| !word.is_empty()).chain(on)
    }
}

/// `name = value`; a value may be empty.
fn setting(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let is_name = !name.is_empty() && !name.contains([' ', '\t', '"', '#', '{']);
    is_name.then_some((name, value.trim()))
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).trim()
}

/// Seconds of a time such as `5 secs`, `2 mins`, `1 hour` or `500 msecs` (rounded up); `0` is none.
pub fn seconds(time: &str) -> Option<u64> {
    let digits = time.find(|c: char| !c.is_ascii_digit()).unwrap_or(time.len());
    let (number, unit) = time.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = unit.trim().to_ascii_lowercase();
    let names = |names: &[&str]| names.contains(&unit.strip_suffix('s').unwrap_or(&unit));
    let factor = match unit.as_str() {
        "" if number == 0 => return Some(0),
        "s" => 1,
        "ms" => return Some(number.div_ceil(1000)),
        _ if names(&["sec", "second"]) => 1,
        _ if names(&["m", "min", "minute"]) => 60,
        _ if names(&["h", "hour"]) => 3600,
        _ if names(&["d", "day"]) => 86_400,
        _ if names(&["w", "week"]) => 604_800,
        _ if names(&["msec", "millisecond"]) => return Some(number.div_ceil(1000)),
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocols_own_settings_come_first() {
        let conf = Conf::read(
            "# 2.3.19.1: /etc/dovecot/dovecot.conf\n\
             mail_plugins = \" quota\"\n\
             mail_location = maildir:~/Maildir # {\n\
             namespace inbox {\n  location = \n  mailbox \"Sent Messages\" {\n    special_use = \
             \\Sent\n  }\n}\n\
             protocol imap {\n  mail_plugins = \" quota imap_quota\"\n}\n\
             protocol lmtp {\n  mail_plugins = \" quota sieve\"\n}\n",
        );
        assert_eq!(conf.plugins("imap").collect::<Vec<_>>(), ["quota", "imap_quota"]);
        assert_eq!(conf.plugins("lmtp").collect::<Vec<_>>(), ["quota", "sieve"]);
        assert_eq!(conf.plugins("lda").collect::<Vec<_>>(), ["quota"]);
        assert_eq!(
            conf.setting(&["namespace inbox", "mailbox Sent Messages"], "special_use"),
            Some("\\Sent")
        );
        assert_eq!(conf.setting(&["namespace inbox"], "location"), Some(""));
        assert_eq!(conf.setting(&["namespace inbox"], "special_use"), None);
    }

    #[test]
    fn switches_of_2_4_are_plugins() {
        let conf = Conf::read(
            "mail_plugins {\n  quota = yes\n  acl = yes\n}\n\
             protocol lmtp {\n  mail_plugins {\n    sieve = yes\n    acl = no\n  }\n}\n",
        );
        assert_eq!(conf.plugins("imap").collect::<Vec<_>>(), ["acl", "quota"]);
        assert_eq!(conf.plugins("lmtp").collect::<Vec<_>>(), ["quota", "sieve"]);
    }

    #[test]
    fn what_is_no_configuration_is_passed_over() {
        for text in [
            "}\n}\nmail_fsync = never",
            "{{{\n= x\n\"a = b\nmail_fsync = never\n}\0",
            "\u{feff}\r\n",
        ] {
            Conf::read(text);
        }
        assert_eq!(
            Conf::read("}\n}\nmail_fsync = never").value("imap", "mail_fsync"),
            Some("never")
        );
        let deep = "a {\n".repeat(100_000) + "b = c\n" + &"}\n".repeat(100_000) + "d = e\n";
        assert_eq!(Conf::read(&deep).setting(&[], "d"), Some("e"));
    }

    #[test]
    fn times_have_units() {
        for (time, secs) in [
            ("0", Some(0)),
            ("5 secs", Some(5)),
            ("5s", Some(5)),
            ("1 second", Some(1)),
            ("2 mins", Some(120)),
            ("2m", Some(120)),
            ("1 hour", Some(3600)),
            ("1 weeks", Some(604_800)),
            ("1500 msecs", Some(2)),
            ("200 ms", Some(1)),
            ("5", None),
            ("", None),
            ("-1 secs", None),
            ("soon", None),
            ("99999999999999999999 secs", None),
            ("18446744073709551615 weeks", None),
        ] {
            assert_eq!(seconds(time), secs, "{time}");
        }
    }
}
