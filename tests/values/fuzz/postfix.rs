//! What `onedrop check` reads of Postfix: what `postconf` prints of main.cf and, after a line `--`,
//! of master.cf.

use std::fs;

use onedrop::check::{Finding, of_postconf};

use super::harness::Target;

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

const DICTIONARY: &[&[u8]] = &[
    b"\n--\n",
    b" = ",
    b"{",
    b"}",
    b" -o ",
    b"-o {a = b}",
    b" argv=",
    b" user=nobody:",
    b" flags=",
    b"null_sender=",
    b"${recipient}",
    b"$(size)",
    b"$$",
    b"virtual_transport = onedrop-lmtp:unix:/run/onedrop/lmtp.sock",
    b"inet:[::1]:24",
    b"inet:[ipv6:::1]",
    b"pipe",
    b"lmtp",
    b"local",
    b"onedrop deliver",
    b"onedrop_time_limit = 99999999999999999999w",
    b"static:all",
    b"\0",
    b"\xff",
    b"\t",
];

fn seeds() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/postfix");
    let folders = fs::read_dir(folder)
        .expect("fixtures/postfix")
        .map(|entry| entry.expect("an entry").path());
    let seed = |folder: std::path::PathBuf| {
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect("a fixture");
        // As postconf -M prints it: each service on one line.
        let master = read("master.cf").replace("\n ", " ");
        format!("{}\n--\n{master}", read("main.cf")).into_bytes()
    };
    folders.map(seed).collect()
}

pub fn check(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (main, master) = text.split_once("\n--\n").unwrap_or((&text, ""));
    let told = of_postconf(main, master);
    for Finding { text, .. } in &told {
        assert!(text.len() <= 5000 && !text.contains(char::is_control), "{text:?}");
    }
    let spaced = format!("\n{master}\n\n");
    assert_eq!(of_postconf(main, &spaced), told, "blank lines mean nothing");
}
