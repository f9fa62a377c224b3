//! Whether the LMTP server that runs has read what the files say now: its answer to HELP has
//! digests of its values. This finds a reload that failed, or that was forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::finding::{Finding, Severity};
use super::{CONNECT, bounded, postfix};
use onedrop_net::socket::Socket;
use onedrop_site::config::{Listen, Loaded};

/// Bytes of all its answers.
const LONGEST: usize = 64 << 10;
/// Before each key and its digest (`service.rs`).
const MARK: &str = "214-2.0.0 configuration ";

pub(super) fn findings(loaded: &Loaded) -> Vec<Finding> {
    let ours = loaded.digests();
    let config = &loaded.config;
    let own = config.lmtp.listen.iter().cloned();
    let via = config.deliver.via.clone().map(Listen::Unix);
    let mut places: Vec<Listen> = own.chain(via).collect();
    if loaded.is_the_hosts() {
        places.push(Listen::Unix(postfix::SOCKET.into()));
    }
    let places: BTreeSet<String> = places.iter().map(ToString::to_string).collect();
    places.iter().filter_map(|place| finding(place, &ours)).collect()
}

fn finding(place: &str, ours: &BTreeMap<String, String>) -> Option<Finding> {
    let asked = place.parse::<Listen>().ok()?;
    let answer = bounded(CONNECT * 2, move || ask(&asked, Instant::now() + CONNECT)).ok()?.ok()?;
    let theirs = answer.lines().filter_map(|line| line.strip_prefix(MARK)?.split_once(' '));
    let theirs: BTreeMap<&str, &str> = theirs.collect();
    let known = ours.iter().filter(|(key, _)| theirs.contains_key(key.as_str()));
    let differs = known.filter(|(key, digest)| theirs[key.as_str()] != digest.as_str());
    let differing: Vec<&str> = differs.map(|(key, _)| key.as_str()).collect();
    let (severity, text) = match (theirs.is_empty(), differing.as_slice()) {
        // Of an older version.
        (true, _) => return None,
        (false, []) => (Severity::Ok, format!("the server at {place} has read these files")),
        (false, keys) => {
            let text = format!(
                "the server at {place} runs with other values than the files have now: {}; reload \
                 it (systemctl reload onedrop-lmtp), and see in its log whether it took them",
                keys.join(", ")
            );
            (Severity::Warning, text)
        }
    };
    Some(Finding::new(severity, "lmtp", text))
}

/// What the server at `place` says.
fn ask(place: &Listen, until: Instant) -> std::io::Result<String> {
    let left = || until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let socket = match place {
        Listen::Unix(path) => Socket::connect_unix(path, left())?,
        Listen::Tcp(address) => {
            Socket::connect_tcp(&address.ip().to_string(), address.port(), until)?
        }
    };
    socket.write_all(b"HELP\r\nQUIT\r\n", until)?;
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while all.len() < LONGEST {
        match socket.read(&mut part, until)? {
            0 => break,
            count => all.extend_from_slice(&part[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&all).replace('\r', ""))
}
