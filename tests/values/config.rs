//! Single texts of a configuration. Whole files are cases of `fixtures/config`
//! (`tests/commands/config.rs`).

use std::collections::BTreeSet;

use onedrop::config::{Config, Listen, SocketMode, known_keys};
use onedrop_kit::TempRoot;

#[test]
fn a_mode_is_octal_and_lets_somebody_connect() {
    for (text, mode) in
        [("0660", 0o660), ("660", 0o660), ("0600", 0o600), ("0777", 0o777), ("0020", 0o020)]
    {
        assert_eq!(text.parse(), Ok(SocketMode(mode)));
    }
    for text in ["", "0", "66", "0o660", "00660", "0668", "-660", "+660", "rw-rw----"] {
        assert!(text.parse::<SocketMode>().is_err(), "{text}");
    }
    for text in ["0440", "0000", "1660"] {
        assert!(text.parse::<SocketMode>().is_err(), "{text}");
    }
}

#[test]
fn an_address_or_a_socket() {
    for text in ["127.0.0.1:24", "[::1]:24", "0.0.0.0:0", "unix:/run/onedrop/lmtp.sock"] {
        let listen: Listen = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(listen.to_string(), text);
    }
    assert_eq!("unix:/run/a b.sock".parse(), Ok(Listen::Unix("/run/a b.sock".into())));
}

#[test]
fn everything_else_is_refused_with_what_was_meant() {
    let long = format!("unix:/{}", "x".repeat(107));
    for (text, hint) in [
        ("", "ADDRESS:PORT"),
        ("24", "ADDRESS:PORT"),
        ("127.0.0.1", "ADDRESS:PORT"),
        ("127.0.0.1:65536", "ADDRESS:PORT"),
        ("localhost:24", "not a host name"),
        ("*:24", "0.0.0.0 or [::]"),
        (":24", "0.0.0.0 or [::]"),
        ("::1:24", "brackets"),
        ("inet:127.0.0.1:24", "leave out"),
        ("127.0.0.1:25", "RFC 2033"),
        ("/run/onedrop/lmtp.sock", "\"unix:\""),
        ("unix:lmtp.sock", "absolute"),
        ("unix:", "absolute"),
        ("unix:/run/onedrop/", "a folder"),
        ("unix:/run/\u{1}", "control characters"),
        (long.as_str(), "107 bytes at most, this one 108"),
    ] {
        let error = text.parse::<Listen>().expect_err(text);
        assert!(error.contains(hint), "{text}: {error}");
    }
}

/// The words that serde knows where `text` has another one: its error names them.
fn known_words(text: &str) -> Vec<String> {
    let error = toml::from_str::<Config>(text).expect_err("an unknown word").to_string();
    let known = error.split("expected ").nth(1).unwrap_or_default();
    known.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_schema_and_the_enums_have_the_same_words() {
    let folder = TempRoot::new();
    let file = folder.join("onedrop.toml");
    let mut choices = 0;
    for key in known_keys() {
        let (section, name) = key.split_once('.').expect("a section");
        let text = format!("[{section}]\n{name} = \"zzz\"");
        std::fs::write(&file, &text).expect("a file");
        let loaded = Config::load_from(Some(&file), std::iter::empty());
        let why = loaded.err().map(|errors| errors.to_string()).unwrap_or_default();
        let Some((_, words)) = why.split_once("(one of: ") else { continue };
        assert_eq!(words, format!("{})", known_words(&text).join(", ")), "of {key}");
        choices += 1;
    }
    assert_eq!(choices, 9);
}

/// An optional setting without a key would stay unset, whatever an administrator writes.
#[test]
fn every_setting_has_a_key_in_the_schema() {
    let sections = known_words("zzz = 1");
    let settings = sections.iter().flat_map(|section| {
        let names = known_words(&format!("[{section}]\nzzz = 1"));
        names.into_iter().map(move |name| format!("{section}.{name}"))
    });
    let settings: BTreeSet<String> = settings.collect();
    assert_eq!(settings, known_keys().map(str::to_owned).collect());
}
