//! Reading what `postconf -M` prints: a line per service, eight columns, then the daemon's
//! arguments, where braces hold a word together (master(5); Postfix' mystrtokq and extpar).

use std::collections::BTreeMap;

/// One service of master.cf.
#[derive(Debug, Clone)]
pub(super) struct MasterService {
    pub(super) name: String,
    pub(super) unprivileged: String,
    pub(super) chroot: String,
    pub(super) command: String,
    /// `-o name=value`, in order.
    pub(super) overrides: Vec<(String, String)>,
    /// What follows the generic daemon options.
    pub(super) arguments: Vec<String>,
}

impl MasterService {
    /// The service's own value of a parameter; the last one counts.
    pub(super) fn own(&self, parameter: &str) -> Option<&str> {
        self.overrides.iter().rfind(|(name, _)| name == parameter).map(|(_, value)| value.as_str())
    }
}

/// The attributes of a pipe(8) command.
#[derive(Debug)]
pub(super) struct Attributes {
    pub(super) flags: String,
    pub(super) argv: Vec<String>,
    others: BTreeMap<String, String>,
}

impl Attributes {
    /// The attributes as pipe(8) reads them: names in any case, the last of each counts, flags
    /// accumulate, argv is the last.
    pub(super) fn read(arguments: &[String]) -> Attributes {
        let mut read =
            Attributes { flags: String::new(), argv: Vec::new(), others: BTreeMap::new() };
        for (at, argument) in arguments.iter().enumerate() {
            let Some((name, value)) = argument.split_once('=') else { continue };
            match name.to_ascii_lowercase().as_str() {
                "flags" => read.flags.push_str(value),
                "argv" => {
                    read.argv.push(value.to_owned());
                    read.argv.extend_from_slice(&arguments[at + 1..]);
                    break;
                }
                other => drop(read.others.insert(other.to_owned(), value.to_owned())),
            }
        }
        read
    }

    /// An attribute beside flags and argv.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.others.get(name).map(String::as_str)
    }
}

/// The services in `listing`.
pub(super) fn services(listing: &str) -> Vec<MasterService> {
    listing.lines().filter_map(service).collect()
}

fn service(line: &str) -> Option<MasterService> {
    let words = words(line);
    let [name, _kind, _private, unprivileged, chroot, _wakeup, _processes, command, more @ ..] =
        &words[..]
    else {
        return None;
    };
    let mut overrides = Vec::new();
    let mut more = more.iter().peekable();
    while let Some(option) = more.next_if(|word| word.starts_with('-')) {
        if option == "-o"
            && let Some((name, value)) = more.next().and_then(|setting| setting.split_once('='))
        {
            overrides.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    let [name, unprivileged, chroot, command] =
        [name, unprivileged, chroot, command].map(String::clone);
    let arguments = more.cloned().collect();
    Some(MasterService { name, unprivileged, chroot, command, overrides, arguments })
}

/// The words of `line`: blanks separate them except in braces; outer braces are removed.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut depth = 0_usize;
    for c in line.chars().chain([' ']) {
        if c.is_ascii_whitespace() && (depth == 0 || word.is_empty()) {
            if !word.is_empty() {
                words.push(unbraced(&word));
                word.clear();
            }
            continue;
        }
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        word.push(c);
    }
    words
}

fn unbraced(word: &str) -> String {
    let inner = word.strip_prefix('{').and_then(|word| word.strip_suffix('}'));
    inner.map_or(word, str::trim).to_owned()
}
