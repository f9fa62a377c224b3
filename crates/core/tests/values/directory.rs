//! Addresses to accounts, and accounts to folders.

use std::path::Path;

use onedrop_core::directory::{
    AccountTemplate, Asked, Detail, Directory, FolderTemplate, Home, Known, detail_mailbox,
    is_same_domain, mailbox_name,
};

fn directory() -> Directory {
    Directory {
        userdb: None,
        domains: vec!["mail.axial.net".into()],
        account: "{local}".parse().expect("a template"),
        recipient_delimiter: "+-".into(),
        detail: Detail::Ignore,
        accounts: [("lisa@gmail.com".to_owned(), Home::of("lisa"))].into(),
        query: None,
    }
}

fn home(account: &str) -> Known {
    Known::Home(Home::of(account))
}

fn filed(account: &str, mailbox: &str) -> Known {
    Known::Home(Home { account: account.into(), mailbox: Some(mailbox.into()) })
}

#[test]
fn a_detail_names_a_mailbox_in_its_own_case_where_nothing_else_does() {
    let team = Home { account: "post".to_owned(), mailbox: Some("Public/team".to_owned()) };
    let listed = [
        ("team@axial.example", team),
        ("lisa@gmail.com", Home::of("lisa")),
        ("lisa+boss@gmail.com", Home::of("lisa")),
    ];
    let accounts = listed.map(|(address, home)| (address.to_owned(), home)).into();
    let directory = Directory { detail: Detail::Mailbox, accounts, ..directory() };
    for (address, known) in [
        ("Doug+Lists@MAIL.axial.net", filed("doug", "Lists")),
        ("doug-lists+rust@mail.axial.net", filed("doug", "lists+rust")),
        ("doug+inBOX@mail.axial.net", filed("doug", "INBOX")),
        ("doug@mail.axial.net", home("doug")),
        ("doug+@mail.axial.net", home("doug")),
        ("doug+Lists", filed("doug", "Lists")),
        ("doug+../lisa@mail.axial.net", home("doug")),
        ("doug+Public/team@mail.axial.net", home("doug")),
        ("doug+Public.team@mail.axial.net", home("doug")),
        ("lisa+x@gmail.com", filed("lisa", "x")),
        ("lisa+boss@gmail.com", home("lisa")),
        ("team@axial.example", filed("post", "Public/team")),
        ("team+x@axial.example", filed("post", "Public/team")),
    ] {
        assert_eq!(directory.known(address), known, "{address}");
    }
    let query = Directory { query: Some("SELECT $1".to_owned()), ..directory };
    for nobody in ["", "@mail.axial.net", "<>"] {
        assert_eq!(query.known(nobody), Known::Nobody, "{nobody}");
    }
    let Known::Ask(asked) = query.known("Doug+Lists@mail.axial.net") else { panic!("not asked") };
    let asked = (asked.address.as_str(), asked.given.as_str(), asked.mailbox.as_deref());
    let expected = ("doug@mail.axial.net", "doug+lists@mail.axial.net", Some("Lists"));
    assert_eq!(asked, expected);
}

#[test]
fn what_could_lead_out_of_an_accounts_mailboxes_names_none() {
    let long = "x".repeat(200);
    for (name, mailbox, by_detail) in [
        ("lists", Some("lists"), true),
        ("Größe", Some("Größe"), true),
        ("A & B", Some("A & B"), true),
        ("inbox", Some("INBOX"), true),
        ("Inbox/a", Some("INBOX/a"), false),
        ("Public/team", Some("Public/team"), false),
        ("a.b", Some("a.b"), false),
        ("x; stored account=ceo", Some("x; stored account=ceo"), false),
        (&long, Some(&*long), true),
        (&format!("{long}x"), None, false),
        ("", None, false),
        (" a", None, false),
        ("a ", None, false),
        (".", None, false),
        (".a", None, false),
        ("..", None, false),
        ("a/..", None, false),
        ("a/../b", None, false),
        ("a/./b", None, false),
        ("/a", None, false),
        ("a/", None, false),
        ("a//b", None, false),
        ("~root", None, false),
        ("a*", None, false),
        ("a%", None, false),
        ("a\\b", None, false),
        ("a\0", None, false),
        ("a\r\nb", None, false),
        ("a\u{85}b", None, false),
    ] {
        assert_eq!(mailbox_name(name).as_deref(), mailbox, "{name:?}");
        assert_eq!(detail_mailbox(name).as_deref(), mailbox.filter(|_| by_detail), "{name:?}");
    }
}

#[test]
fn addresses_lead_to_accounts() {
    let cases = [
        ("scuba@mail.axial.net", home("scuba")),
        ("Scuba+Detail@MAIL.axial.net", home("scuba")),
        ("scuba-lists@mail.axial.net", home("scuba")),
        ("+x@mail.axial.net", home("+x")),
        ("<lisa+a@gmail.com>", home("lisa")),
        ("doug", home("doug")),
        ("doug@elsewhere.example", Known::Nobody),
        ("../etc@mail.axial.net", Known::Nobody),
        ("a/b@mail.axial.net", Known::Nobody),
        // With accounts that are whole addresses it would be another domain's.
        ("\"doug@other.example\"@mail.axial.net", Known::Nobody),
        ("doug@other.example@mail.axial.net", Known::Nobody),
        ("scuba@mail.axial.net.", home("scuba")),
        ("@mail.axial.net", Known::Nobody),
        ("", Known::Nobody),
    ];
    for (address, known) in cases {
        assert_eq!(directory().known(address), known, "{address}");
    }
}

/// What the userdb is asked for an address; `None`: it is not asked.
#[test]
fn the_userdb_is_asked_for_accounts_of_the_domains_by_their_template() {
    let userdb = Some("/run/dovecot/auth-userdb".into());
    let by_name = Directory { userdb, ..directory() };
    let account = "{address}".parse().expect("a template");
    let everywhere = Directory { domains: Vec::new(), account, ..by_name.clone() };
    let name = |directory: &Directory, address: &str| match directory.known(address) {
        Known::Ask(asked) => directory.name_in_userdb(&asked),
        Known::Home(_) | Known::Nobody => None,
    };
    for (address, here, anywhere) in [
        ("Scuba+x@MAIL.axial.net", Some("scuba"), Some("scuba@mail.axial.net")),
        ("doug", Some("doug"), Some("doug")),
        ("lisa@gmail.com", None, None),
        ("doug@elsewhere.example", None, Some("doug@elsewhere.example")),
        ("../etc@mail.axial.net", None, None),
        ("a/b@mail.axial.net", None, None),
        // A server that takes accounts for addresses would have another domain's user.
        ("\"doug@other.example\"@mail.axial.net", None, None),
        ("doug@other.example@mail.axial.net", None, None),
        ("@mail.axial.net", None, None),
        ("", None, None),
    ] {
        assert_eq!(name(&by_name, address).as_deref(), here, "{address}");
        assert_eq!(name(&everywhere, address).as_deref(), anywhere, "{address}");
    }
    assert_eq!(by_name.known("lisa@gmail.com"), home("lisa"), "as it is listed");
}

#[test]
fn with_a_query_the_users_of_a_domain_come_from_the_query_alone() {
    let directory = Directory { query: Some("SELECT $1".to_owned()), ..directory() };
    let asked = Asked {
        address: "scuba@mail.axial.net".to_owned(),
        given: "scuba+x@mail.axial.net".to_owned(),
        mailbox: None,
    };
    assert_eq!(directory.known("Scuba+x@mail.axial.net"), Known::Ask(asked));
    assert_eq!(directory.known("lisa@gmail.com"), home("lisa"));
    assert_eq!(directory.known("x@elsewhere.example"), Known::Nobody);
}

#[test]
fn with_a_template_of_addresses_every_domain_has_accounts_of_its_own() {
    let domains = vec!["a.example".to_owned(), "b.example".to_owned()];
    let account = "{address}".parse().expect("a template");
    let directory = Directory { domains, account, ..directory() };
    let long = format!("{}@a.example", "x".repeat(245));
    for (address, known) in [
        ("info@a.example", home("info@a.example")),
        ("Info+x@B.example", home("info@b.example")),
        ("lisa+a@gmail.com", home("lisa")),
        ("doug", home("doug@a.example")),
        (&long, home(&long)),
        (&format!("x{long}"), Known::Nobody),
        ("info@c.example", Known::Nobody),
        ("../etc@a.example", Known::Nobody),
        (".ssh@a.example", Known::Nobody),
        ("@a.example", Known::Nobody),
    ] {
        assert_eq!(directory.known(address), known, "{address}");
    }
}

#[test]
fn an_account_is_looked_up_with_its_detail_first() {
    let accounts =
        ["lisa+boss@gmail.com", "lisa@gmail.com"].map(|key| (key.to_owned(), Home::of(&key[4..5])));
    let directory = Directory {
        accounts: accounts.into(),
        query: Some("SELECT $1".to_owned()),
        domains: vec![],
        ..directory()
    };
    assert_eq!(directory.known("lisa+boss@gmail.com"), home("+"));
    assert_eq!(directory.known("lisa+x@gmail.com"), home("@"));
}

fn account(template: &str) -> Result<AccountTemplate, String> {
    template.parse()
}

fn folder(path: &str, account: &str) -> Option<String> {
    let template = FolderTemplate::parse(Path::new(path)).expect(path);
    template.folder(account).map(|folder| folder.display().to_string())
}

#[test]
fn an_account_follows_its_template() {
    for (template, expected) in [
        ("{local}", "scuba"),
        ("{address}", "scuba@a.example"),
        ("{local}@{domain}", "scuba@a.example"),
        ("{domain}.{local}", "a.example.scuba"),
        ("u-{local}", "u-scuba"),
    ] {
        let read = account(template).expect(template);
        assert_eq!(read.account("scuba", "a.example"), expected);
        assert_eq!(read.to_string(), template);
    }
}

#[test]
fn a_template_for_one_account_or_with_slashes_is_refused() {
    for (template, why) in [
        ("", "needs {local}"),
        ("vmail", "needs {local}"),
        ("{domain}", "needs {local}"),
        ("{user}", "unknown placeholder (known: {local}, {domain}, {address})"),
        ("{account}", "unknown placeholder"),
        ("{local", "brace"),
        ("local}", "brace"),
        ("{{local}}", "unknown placeholder"),
        ("{domain}/{local}", "slashes"),
        ("{local}\n", "control"),
    ] {
        let error = account(template).expect_err(template);
        assert!(error.contains(why), "{template}: {error}");
    }
}

#[test]
fn templates_that_let_two_users_share_an_account_are_recognized() {
    for (template, one, other, shares) in [
        ("{local}", "a.example", "b.example", true),
        ("u-{local}", "a.example", "b.example", true),
        ("{address}", "a.example", "b.example", false),
        // x.a@example and x@a.example
        ("{local}.{domain}", "example", "a.example", true),
        ("{local}.{domain}", "a.example", "b.example", false),
        ("{local}@{domain}", "example", "a.example", false),
        // org.x@a.example and x@a.example.org
        ("{domain}.{local}", "a.example", "a.example.org", true),
        ("{domain}.{local}", "a.example", "b.example", false),
        ("{domain}@{local}", "a.example", "a.example.org", false),
        ("{domain}.{local}.{domain}", "a.example", "b.example", false),
    ] {
        let read = account(template).expect(template);
        assert_eq!(read.may_share(one, other), shares, "{template} {one} {other}");
        assert_eq!(read.may_share(other, one), shares, "{template} {other} {one}");
    }
    let read = account("{local}.{domain}").expect("a template");
    assert_eq!(read.account("x.a", "example"), read.account("x", "a.example"));
}

#[test]
fn only_a_whole_address_is_an_address() {
    for (template, is_address) in [
        ("{address}", true),
        ("{local}@{domain}", true),
        ("{local}", false),
        ("{domain}@{local}", false),
    ] {
        assert_eq!(account(template).expect(template).is_address(), is_address, "{template}");
    }
}

#[test]
fn an_account_has_one_folder() {
    for (path, name, expected) in [
        ("/srv/mail", "scuba", Some("/srv/mail/scuba/Maildir")),
        ("/srv/mail", "scuba@a.example", Some("/srv/mail/scuba@a.example/Maildir")),
        ("demo/mail", "scuba", Some("demo/mail/scuba/Maildir")),
        ("/srv/{account}", "scuba", Some("/srv/scuba")),
        ("/srv/mail/{domain}/{local}", "scuba@a.example", Some("/srv/mail/a.example/scuba")),
        (
            "/srv/{domain}/u-{local}/Maildir",
            "scuba@a.example",
            Some("/srv/a.example/u-scuba/Maildir"),
        ),
        // The last @ separates: a domain cannot hold one.
        ("/srv/mail/{domain}/{local}", "\"a@b\"@c", Some("/srv/mail/c/\"a@b\"")),
        ("/srv/mail/{domain}/{local}", "scuba", None),
        ("/srv/mail/{domain}/{local}", "@a.example", None),
        ("/srv/mail/{domain}/{local}", "scuba@", None),
        ("/srv/mail/{domain}/{local}", "scuba@..", None),
        ("/srv/mail/{domain}/{local}", "scuba@.a", None),
        ("/srv/mail/{domain}/{local}", "../x@a.example", None),
        ("/srv/mail/{domain}/{local}", "..@a.example", None),
        ("/srv/mail/{domain}/{local}", "a/../b@a.example", None),
        ("/srv/mail", "..", None),
        ("/srv/mail", ".ssh", None),
        ("/srv/mail", "a/b", None),
    ] {
        assert_eq!(folder(path, name).as_deref(), expected, "{path} {name}");
    }
}

#[test]
fn a_path_that_lets_two_accounts_share_a_folder_is_refused() {
    for (path, why) in [
        ("/srv/{domain}", "needs {account}, or {domain} and {local}"),
        ("/srv/{local}", "needs {account}, or {domain} and {local}"),
        ("/srv/{local}.{domain}", "two placeholders in one folder's name"),
        ("/srv/{account}{account}", "two placeholders in one folder's name"),
        ("/srv/{address}", "unknown placeholder (known: {local}, {domain}, {account})"),
        ("/srv/{user}", "unknown placeholder"),
        ("/srv/{account}/../x", "\"..\" after a placeholder"),
        ("/srv/{account", "brace"),
    ] {
        let error = FolderTemplate::parse(Path::new(path)).expect_err(path);
        assert!(error.contains(why), "{path}: {error}");
    }
}

#[test]
fn the_forms_of_an_international_domain_are_one() {
    const FORMS: [&str; 6] = [
        "bücher.example",
        "xn--bcher-kva.example",
        "bu\u{308}cher.example",
        "BÜCHER.Example",
        "XN--BCHER-KVA.EXAMPLE",
        "bücher.example.",
    ];
    for listed in &FORMS[..3] {
        let by_domain = Directory {
            domains: vec![(*listed).to_owned()],
            account: "{address}".parse().expect("a template"),
            ..directory()
        };
        let mut by_list = directory();
        by_list.accounts.insert(format!("info@{listed}"), Home::of("info"));
        for form in FORMS {
            let known = by_domain.known(&format!("Scuba+x@{form}"));
            assert_eq!(known, home(&format!("scuba@{listed}")), "{form}");
            let known = by_list.known(&format!("info+x@{form}"));
            assert_eq!(known, home("info"), "{form}");
        }
    }
    // Of those that are not listed it is the one in ASCII that a query is asked for.
    for form in FORMS {
        let asked = directory().asked(&format!("scuba@{form}"));
        assert_eq!(asked.address, "scuba@xn--bcher-kva.example", "{form}");
    }
    for other in ["bucher.example", "xn--bcher-kvb.example", "bücher.example.net", "xn--"] {
        assert!(FORMS.iter().all(|form| !is_same_domain(form, other)), "{other}");
    }
}
