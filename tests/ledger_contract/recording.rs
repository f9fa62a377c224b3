//! What a message, its parts and its copies are on record as.

use super::*;

pub fn a_message_is_recorded_once(rig: &dyn Rig) {
    let host = Host::of(rig);
    let first = host.record(&mail("once"), &[inbox()]);
    assert!(first.is_new && !first.collision);
    let at = first.recorded_at.duration_since(UNIX_EPOCH).expect("after 1970");
    assert_eq!(at.subsec_nanos(), 0, "whole seconds");
    rig.expire_leases();
    // A second recording in another second would show if the time were taken anew.
    let begun = Instant::now();
    while SystemTime::now()
        .duration_since(first.recorded_at)
        .is_ok_and(|age| age < Duration::from_secs(1))
    {
        assert!(begun.elapsed() < Duration::from_secs(5), "the clocks differ");
        thread::sleep(Duration::from_millis(20));
    }
    let second = host.record(&mail("once"), &[inbox()]);
    assert!(!second.is_new && !second.collision);
    assert_eq!((second.message, second.recorded_at), (first.message, first.recorded_at));
    assert_ne!(second.attempt, first.attempt, "each run is an attempt");
    assert_eq!(host.trace_one("once@example.org").attempts.len(), 2);
}

pub fn a_message_is_one_whichever_host_asks_first(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let by_a = a.record(&mail("one"), &[inbox()]);
    let by_b = b.record(&mail("one"), &[sent()]);
    assert_eq!(
        (by_b.message, by_b.recorded_at, by_b.is_new),
        (by_a.message, by_a.recorded_at, false)
    );
    assert!(matches!(by_b.copies[0], CopyState::Claimed(Claim { epoch: 1, in_doubt: false, .. })));
}

pub fn another_content_under_one_message_id_is_another_message_and_both_are_marked(rig: &dyn Rig) {
    let host = Host::of(rig);
    let first = host.record(&mail_with_body("twice", "one"), &[inbox()]);
    let second = host.record(&mail_with_body("twice", "two"), &[inbox()]);
    assert!(second.is_new && second.collision && !first.collision);
    assert_ne!(first.message, second.message);
    assert!(
        matches!(second.copies[0], CopyState::Claimed(Claim { in_doubt: false, .. })),
        "a copy of its own"
    );
    let again = host.record(&mail_with_body("twice", "one"), &[inbox()]);
    assert!(again.collision && !again.is_new, "the first is marked as well");
    assert_eq!(again.message, first.message);
    let third = host.record(&mail_with_body("twice", "three"), &[]);
    assert!(third.collision);
    let traces = host.trace("<twice@example.org>");
    assert_eq!(traces.len(), 3);
    assert!(traces.iter().all(|trace| trace.collision));
    assert!(!host.record(&mail("alone"), &[]).collision);
}

pub fn without_a_message_id_there_is_no_collision(rig: &dyn Rig) {
    let host = Host::of(rig);
    let (one, two) = (message("Subject: a\n\none"), message("Subject: a\n\ntwo"));
    for mail in [&one, &two, &one] {
        assert!(!host.record(mail, &[]).collision);
    }
    // Equal hashes without a Message-ID cannot come from two contents; if they do, it is no
    // collision of ids.
    let forged = Identity { digest: two.identity().digest, ..one.identity().clone() };
    let recorded = host.record_identity(&forged, &Facts::default());
    assert!(recorded.is_new && !recorded.collision);
}

pub fn any_bytes_can_be_a_message_id(rig: &dyn Rig) {
    let host = Host::of(rig);
    let ids: [&[u8]; 10] = [
        b"<a@b>",
        b"<A@b>",
        b"<a\r\n@b>",
        b"<a'\"@b>",
        b"{a@b} $1 ?1 %s \\",
        b"<a\0@b>",
        b"<a\x80\xff@b>",
        b"<a\xc3\xa9@b>",
        b"\0",
        &[b'x'; 4096],
    ];
    let mut rows = Vec::new();
    for id in ids {
        let hash = lock_key::message_hash(id);
        let identity = Identity { message_id: Some(id.to_vec()), id_hash: hash, digest: hash };
        let recorded = host.record_identity(&identity, &Facts::default());
        assert!(recorded.is_new && !recorded.collision, "{id:?}");
        assert_eq!(host.record_identity(&identity, &Facts::default()).message, recorded.message);
        rows.push(recorded.message.number);
    }
    for (id, row) in ids.iter().zip(rows) {
        if let Ok(text) = std::str::from_utf8(id) {
            assert_eq!(host.trace_one(text).message, row, "{text:?}");
        }
    }
}

pub fn the_bytes_are_kept_when_given(rig: &dyn Rig) {
    let host = Host::of(rig);
    for (name, raw) in
        [("kept", Some(&b"bytes \0 \xff"[..])), ("not-kept", None), ("kept-empty", Some(b""))]
    {
        let mail = mail(name);
        let facts = mail.facts();
        let entry = Entry { size_bytes: 12, raw, ..entry(mail.identity(), &facts) };
        host.record_entry(&entry, &attempt("mx1"), &[], LEASE);
        let trace = host.trace_one(&format!("{name}@example.org"));
        assert_eq!((trace.raw_kept, trace.size_bytes), (raw.is_some(), 12), "{name}");
    }
}

pub fn many_addresses_and_parts_keep_their_order(rig: &dyn Rig) {
    let host = Host::of(rig);
    let address = |n: usize| AddressFact {
        role: if n == 0 { "from" } else { "to" },
        name: n.is_multiple_of(2).then(|| format!("Name {n} 'q\" {{é}}")),
        address: (n % 3 != 2).then(|| format!("a{n}@example.org")),
    };
    let part = |n: usize| PartFact {
        path: format!("1.{n}"),
        content_type: "text/plain".to_owned(),
        name: n.is_multiple_of(2).then(|| format!("f{n}.txt")),
        size_bytes: n as u64 * 1_000_000_000,
    };
    let facts = Facts {
        subject: Some("Many".to_owned()),
        date: Some(-1),
        in_reply_to: Some("<a@b>".to_owned()),
        references: Some("<a@b> <c@d>".to_owned()),
        addresses: (0..1000).map(address).collect(),
        parts: (0..200).map(part).collect(),
    };
    host.record_identity(mail("many").identity(), &facts);
    let trace = host.trace_one("many@example.org");
    assert_eq!(trace.subject.as_deref(), Some("Many"));
    assert_eq!(trace.in_reply_to.as_deref(), Some("<a@b>"));
    assert_eq!(trace.references.as_deref(), Some("<a@b> <c@d>"));
    let addresses = trace
        .addresses
        .iter()
        .map(|one| (one.role.as_str(), one.name.clone(), one.address.clone()));
    assert!(addresses.eq(facts.addresses.iter().map(|one| (
        one.role,
        one.name.clone(),
        one.address.clone()
    ))));
    let parts = trace.parts.iter().map(|one| (one.path.clone(), one.name.clone(), one.size_bytes));
    assert!(parts.eq(facts.parts.iter().map(|one| (
        one.path.clone(),
        one.name.clone(),
        one.size_bytes as i64
    ))));
    assert!(trace.parts.iter().all(|part| part.content_type == "text/plain"));
    // Dates that a Date field can name and a calendar hardly.
    for (n, date) in
        [i64::MIN, i64::MAX, -62_167_219_200, 253_402_300_800, 0].into_iter().enumerate()
    {
        let facts = Facts { date: Some(date), ..Facts::default() };
        host.record_identity(mail(&format!("date{n}")).identity(), &facts);
        host.trace_one(&format!("date{n}@example.org"));
    }
}

pub fn a_record_is_contended_while_another_host_holds_the_messages_lock(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let wanted = mail("wanted");
    let other = a.claim(&mail("other"), &inbox());
    // A lock is 64 bits of a hash, whatever the hash is of: a turn under the message's hash
    // holds the message's lock.
    let turn = a.turn(&other, &wanted.identity().id_hash);
    assert_eq!(turn, OURS);
    assert!(matches!(b.try_record(&wanted, &[inbox()], LEASE), Err(LedgerError::Contended)));
    assert!(b.trace("wanted@example.org").is_empty(), "nothing was recorded");
    b.record(&mail("third"), &[inbox()]);
    drop(turn);
    assert!(b.record(&wanted, &[inbox()]).is_new);
}

pub fn copies_come_back_in_the_order_of_the_destinations(rig: &dyn Rig) {
    let host = Host::of(rig);
    let names = ["zoe", "adam", "mia", "ben", "o'brien \"x\"", "grüße"];
    let destinations: Vec<_> = names.into_iter().map(Destination::inbox).collect();
    let first: Vec<i64> = host
        .record(&mail("order"), &destinations)
        .copies
        .iter()
        .map(|state| claimed(state).copy)
        .collect();
    rig.expire_leases();
    let reversed: Vec<_> = destinations.iter().rev().cloned().collect();
    let mut second: Vec<i64> = host
        .record(&mail("order"), &reversed)
        .copies
        .iter()
        .map(|state| claimed(state).copy)
        .collect();
    second.reverse();
    assert_eq!(first, second);
    // The same one twice: one of the two waits for the other.
    let twice = host.record(&mail("twice"), &[inbox(), inbox()]).copies;
    assert!(matches!(twice[..], [CopyState::Claimed(_), CopyState::Busy]), "{twice:?}");
}

pub fn one_message_has_one_row_for_each_account_and_mailbox(rig: &dyn Rig) {
    let host = Host::of(rig);
    let destinations = [
        Destination::inbox("a"),
        Destination::inbox("A"),
        Destination::sent("a", "Sent"),
        Destination::sent("a", "sent"),
        Destination::sent("a", "Sent "),
        Destination::sent("aS", "ent"),
    ];
    let mut rows: Vec<i64> = host
        .record(&mail("rows"), &destinations)
        .copies
        .iter()
        .map(|state| claimed(state).copy)
        .collect();
    rows.extend(
        host.record(&mail("other"), &destinations).copies.iter().map(|state| claimed(state).copy),
    );
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), 2 * destinations.len());
}

pub fn a_message_that_is_taken_out_takes_everything_along(rig: &dyn Rig) {
    let host = Host::of(rig);
    let first = host.record(&mail("first"), &[inbox(), sent()]);
    host.record(&mail("second"), &[inbox()]);
    let left = |rows: u32| {
        ["address", "part", "copy", "attempt"].map(|table| {
            format!(
                "CREATE TABLE left_{table}_{rows} (n INTEGER CHECK (n = {rows}));
                 INSERT INTO left_{table}_{rows} SELECT count(*) FROM onedrop_{table}
                 WHERE message_id = {};",
                first.message.number
            )
        })
    };
    if !rig.sql(&left(1)[..2].concat()) {
        return;
    }
    rig.sql(&format!("DELETE FROM onedrop_message WHERE id = {}", first.message.number));
    rig.sql(&left(0).concat());
    assert!(host.trace("first@example.org").is_empty());
    let kept = host.trace_one("second@example.org");
    assert_eq!(
        (kept.addresses.len(), kept.parts.len(), kept.copies.len(), kept.attempts.len()),
        (1, 1, 1, 1)
    );
    let again = host.record(&mail("first"), &[inbox()]);
    assert!(again.is_new && again.message != first.message, "it counts as never seen");
}
