//! What `onedrop check` reads of Dovecot: the output of `doveconf -n`, or anything else.

use std::fs;

use onedrop::check::{Finding, of_doveconf};

use super::harness::Target;

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

const DICTIONARY: &[&[u8]] = &[
    b"protocol imap {\n",
    b"protocol lmtp {\n",
    b"}\n",
    b"{\n",
    b" = ",
    b"mail_plugins",
    b"mail_plugins {\n",
    b"sieve",
    b"quota",
    b"yes",
    b"mail_max_lock_timeout = ",
    b"18446744073709551615 weeks",
    b"0 secs",
    b"msecs",
    b"override_fields = nodelay",
    b"::/0",
    b"127.0.0.0/129",
    b"mail_max_userip_connections = ",
    b"service anvil {\n",
    b"\"",
    b"#",
    b"\0",
    b"\xff",
    b"\r\n",
];

fn seeds() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/dovecot");
    let paths = fs::read_dir(folder)
        .expect("fixtures/dovecot")
        .map(|entry| entry.expect("an entry").path());
    let confs = paths.filter(|path| path.extension().is_some_and(|extension| extension == "conf"));
    confs.map(|path| fs::read(path).expect("a fixture")).collect()
}

pub fn check(input: &[u8]) {
    let output = String::from_utf8_lossy(input);
    let told = of_doveconf(&output);
    assert!(!told.is_empty() && told.len() <= 10, "{told:?}");
    for Finding { text, .. } in told {
        assert!(text.len() <= 5000 && !text.contains(char::is_control), "{text:?}");
    }
    // Blanks at the ends of lines, comments and blank lines mean nothing.
    let spaced: String = output.lines().map(|line| format!("  {line}  \n\n# x = y {{\n")).collect();
    assert_eq!(of_doveconf(&spaced), of_doveconf(&output));
}
