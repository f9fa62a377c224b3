//! Text of strangers and of administrators, and the query of a directory.

use super::*;

pub fn any_text_can_be_recorded(rig: &dyn Rig) {
    let host = Host::of(rig);
    for (n, text) in hostile_texts().into_iter().enumerate() {
        let name = format!("hostile{n}");
        let facts = Facts {
            subject: Some(text.clone()),
            in_reply_to: Some(text.clone()),
            references: Some(text.clone()),
            addresses: vec![AddressFact {
                role: "from",
                name: Some(text.clone()),
                address: Some(text.clone()),
            }],
            parts: vec![PartFact {
                path: "1".to_owned(),
                content_type: text.clone(),
                name: Some(text.clone()),
                size_bytes: 1,
            }],
            ..Facts::default()
        };
        let by = Attempt {
            value: RandomValue::default(),
            recipient: text.clone(),
            sender: text.clone(),
            queue_id: text.clone(),
            host: text.clone(),
            pid: u32::MAX,
        };
        let mail = mail(&name);
        let entry = entry(mail.identity(), &facts);
        let context = format!("{:.40?}", text);
        let recorded = host.record_entry(&entry, &by, &[inbox()], LEASE);
        host.claim_again(recorded.message, &[sent()], &by, LEASE);
        host.note(&mail, &[(by.clone(), delivered())]);
        let trace = host.trace_one(&format!("{name}@example.org"));
        assert_eq!((trace.attempts.len(), trace.copies.len()), (2, 2), "{context}");
        assert_eq!(host.record(&mail, &[]).message, recorded.message, "{context}");
        if text.len() < 1000 && !text.contains(char::is_control) {
            assert_eq!(trace.subject.as_deref().unwrap_or_default(), text);
            assert_eq!(trace.attempts[0].sender, text);
            assert_eq!(trace.addresses[0].name.as_deref().unwrap_or_default(), text);
        }
    }
}

pub fn any_text_can_be_asked_for(rig: &dyn Rig) {
    let host = Host::of(rig);
    host.record(&mail("asked"), &[inbox()]);
    for text in hostile_texts() {
        assert!(host.trace(&text).is_empty(), "{text:.40?}");
    }
    let odd = "o'brien\"{$1}\\@Grüße.example";
    let by = Attempt { recipient: odd.to_owned(), queue_id: odd.to_owned(), ..attempt("mx1") };
    host.try_record_by(&mail("odd"), &by, &[Destination::inbox("it's \"{$1}\\")], LEASE)
        .expect("record");
    for wanted in [odd, &odd.to_ascii_uppercase(), "it's \"{$1}\\"] {
        assert_eq!(host.trace_one(wanted).subject.as_deref(), Some("odd"), "{wanted}");
    }
}

pub fn an_administrators_query_names_an_account(rig: &dyn Rig) {
    let host = Host::of(rig);
    let query = rig.account_query("doug@example.org", "doug");
    let ask = |address: &str| host.account(&query, &Asked::plain(address)).expect("an answer");
    assert_eq!(ask("doug@example.org").as_deref(), Some("doug"));
    for address in
        ["zoe@example.org", "", "' OR 1=1 --", "doug@example.org\0", "{$1}", &"x".repeat(100_000)]
    {
        assert_eq!(ask(address), None, "{address:.40?}");
    }
}

pub fn a_query_is_asked_without_the_detail_and_may_look_at_it(rig: &dyn Rig) {
    if !rig.sql("SELECT 1") {
        return;
    }
    let host = Host::of(rig);
    let asked = Asked { given: "doug+x@a.example".to_owned(), ..Asked::plain("doug@a.example") };
    let joined = |texts: &[&str]| format!("SELECT {}", rig.joined(texts));
    for (query, account) in [
        ("SELECT $1".to_owned(), Some("doug@a.example")),
        ("SELECT $2".to_owned(), Some("doug+x@a.example")),
        // In any order, as often as they like.
        (joined(&["$2", "' '", "$1"]), Some("doug+x@a.example doug@a.example")),
        (joined(&["$1", "$1", "'$2'"]), Some("doug@a.exampledoug@a.example$2")),
        (
            "SELECT 'detail' WHERE $2 LIKE '%+x@%' AND $1 = 'doug@a.example'".to_owned(),
            Some("detail"),
        ),
        ("SELECT 'detail' WHERE $1 LIKE '%+x@%'".to_owned(), None),
    ] {
        let answer = host.account(&query, &asked).expect(&query);
        assert_eq!(answer.as_deref(), account, "{query}");
    }
    let answer = host.account(&joined(&["$1", "$3"]), &asked);
    assert!(matches!(answer, Err(LedgerError::Refused(_))), "{answer:?}");
}

pub fn a_querys_second_column_names_the_mailbox(rig: &dyn Rig) {
    if !rig.sql("SELECT 1") {
        return;
    }
    let host = Host::of(rig);
    for (query, mailbox) in [
        ("SELECT 'post', 'Public/team' WHERE $1 = 'x'", Some("Public/team")),
        ("SELECT 'post' AS a, 'a' AS a WHERE $1 = 'x'", Some("a")),
        ("SELECT 'post', '' WHERE $1 = 'x'", None),
        ("SELECT 'post', NULL WHERE $1 = 'x'", None),
        ("SELECT 'post' WHERE $1 = 'x'", None),
    ] {
        let home = Home { account: "post".to_owned(), mailbox: mailbox.map(str::to_owned) };
        assert_eq!(host.home(query, &Asked::plain("x")).expect(query), Some(home), "{query}");
    }
    let nobody = "SELECT NULL, 'a' WHERE $1 = 'x'";
    assert_eq!(host.home(nobody, &Asked::plain("x")).expect(nobody), None);
    let two = "SELECT 'post', 'a' WHERE $1 = 'x' UNION ALL SELECT 'post', 'b' WHERE $1 = 'x'";
    let answer = host.home(two, &Asked::plain("x"));
    let is_sqlite = answer.as_ref().is_ok_and(Option::is_some); // which takes the first row
    assert!(is_sqlite || matches!(answer, Err(LedgerError::Refused(_))), "{answer:?}");
}

pub fn a_wrong_query_is_refused_and_the_handle_goes_on(rig: &dyn Rig) {
    if !rig.sql("SELECT 1") {
        return;
    }
    let host = Host::of(rig);
    let wrong = [
        "SELEKT 1",
        "SELECT account FROM no_such_table WHERE address = $1",
        "SELECT 'a', 'b', 'c' WHERE $1 = 'x'",
        "DELETE FROM onedrop_copy WHERE account = $1",
        "UPDATE onedrop_copy SET account = 'x' WHERE account = $1 RETURNING account",
        "",
    ];
    let claim = host.claim(&mail("query"), &inbox());
    for query in wrong {
        let answer = host.account(query, &Asked::plain("x"));
        assert!(matches!(answer, Err(LedgerError::Refused(_))), "{query:?}: {answer:?}");
        assert_eq!(host.turn(&claim, &copy_key(&mail("query"), &inbox())), OURS, "{query:?}");
    }
    for nobody in
        ["SELECT NULL WHERE $1 = 'x'", "SELECT '' WHERE $1 = 'x'", "SELECT 'a' WHERE $1 = 'y'"]
    {
        assert_eq!(host.account(nobody, &Asked::plain("x")).expect("an answer"), None, "{nobody}");
    }
}
