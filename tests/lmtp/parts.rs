//! Parts of the server without a socket: the queue id that Postfix wrote, the spool, the watch over
//! deliveries that hang.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use onedrop::deliver::Failure;
use onedrop::envelope::Envelope;
use onedrop::lmtp::server::overdue::{GRACE, OVERDUE, OverdueWatch};
use onedrop::lmtp::server::queue_id;
use onedrop::lmtp::server::spool::Spool;
use onedrop::message::{Bytes, DedupBy, Message};

#[test]
fn it_stands_where_postfix_writes_it_and_is_nothing_else() {
    let cases = [
        (
            "by mx.axial.net (Postfix, from userid 1000)\n\tid 4dDgX61Kz9z1bC; Sat, 21 Nov \
             2026 12:00:00 +0000 (UTC)",
            "4dDgX61Kz9z1bC",
        ),
        (
            "from mail (host [192.0.2.1])\n\t(using TLSv1.3 with cipher X (256/256 bits))\n\
             \t(No client certificate requested)\n\t(Authenticated sender: a\\)b)\n\tby \
             mx.axial.net (Postfix) with ESMTPSA id A1B2C3D4E5F\n\tfor <x@y>; today",
            "A1B2C3D4E5F",
        ),
        (
            "from by (id EVIL (Postfix) id EVIL2) by mx (Postfix/Debian) with SMTP id \
             0123456789abcdefABCD;",
            "0123456789abcdefABCD",
        ),
        ("by mx (Postfix) id 0123456789abcdefABCDE;", ""),
        ("by mx (Postfix) with LMTP id a-b;", ""),
        ("by mx (Postfix) with LMTP id ;", ""),
        ("by mx (Postfix) with LMTP; id A1", ""),
        ("by mx (Postfix id A1", ""),
        ("by mx (Exim) with LMTP id A1;", ""),
        ("by mx with LMTP id A1;", ""),
        ("from (by mx (Postfix) id A1) by mx (Onedrop) with LMTP id A2;", ""),
        ("(((((", ""),
        ("by mx (Postfix) id \u{fc}1;", ""),
        ("", ""),
    ];
    for (value, expected) in cases {
        let text =
            format!("X: y\nReceived: {value}\nReceived: by mx (Postfix) id OTHER; then\n\nbody\n");
        let message = Message::new(text.into_bytes(), DedupBy::Content);
        assert_eq!(queue_id::of(&message).unwrap_or_default(), expected, "{value}");
    }
    assert_eq!(
        queue_id::of(&Message::new(
            b"Subject: x\n\nReceived: by a (Postfix) id A1;\n".to_vec(),
            DedupBy::Content
        )),
        None
    );
}

fn gather(memory_bytes: u64, limit: u64, pieces: &[&[u8]]) -> Result<Bytes, Failure> {
    let mut spool = Spool::new(&std::env::temp_dir(), memory_bytes, limit);
    for piece in pieces {
        spool.memory().extend_from_slice(piece);
        spool.settle();
    }
    spool.finish()
}

#[test]
fn a_message_is_the_same_in_memory_and_in_a_file() {
    let pieces: [&[u8]; 3] = [b"one ", b"two ", b"three"];
    for memory_bytes in [0, 3, 4, 8, 12, 13, 100] {
        let bytes = gather(memory_bytes, 13, &pieces).unwrap();
        assert_eq!(&*bytes, b"one two three");
        assert_eq!(matches!(bytes, Bytes::File(_)), memory_bytes < 13);
        assert!(matches!(gather(memory_bytes, 12, &pieces), Err(Failure::TooLarge { limit: 12 })));
    }
    assert!(gather(0, 0, &[]).unwrap().is_empty());
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let mut spool = Spool::new(Path::new("/nonexistent/spool"), 1, 0);
    spool.memory().extend_from_slice(b"two");
    spool.settle();
    let Err(Failure::Setup(error)) = spool.finish() else { panic!("a spool in no folder") };
    assert!(error.starts_with("lmtp.spool_dir: /nonexistent/spool: "), "{error}");
}

#[test]
fn a_delivery_is_overdue_some_time_after_it_was_due_and_until_its_end() {
    let (watch, due, second) = (OverdueWatch::default(), Instant::now(), Duration::from_secs(1));
    let first = watch.begin(due, &Envelope::default(), || {});
    watch.begin(due + second, &Envelope::default(), || {});
    assert_eq!((watch.count(), watch.last_due()), (2, Some(due + second)));
    assert_eq!(watch.overdue(due + OVERDUE), 0);
    assert_eq!(watch.overdue(due + OVERDUE + second), 1);
    assert_eq!(watch.overdue(due + OVERDUE + 2 * second), 2);
    watch.end(first);
    assert_eq!((watch.count(), watch.overdue(due + OVERDUE + 2 * second)), (1, 1));
}

#[test]
fn a_thread_that_says_nothing_is_spoken_for_once() {
    let (watch, due, said) = (OverdueWatch::default(), Instant::now(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&said);
    let answer = move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    watch.begin(due, &Envelope::default(), answer);
    watch.answer(due + GRACE);
    assert_eq!(said.load(Ordering::SeqCst), 0);
    for _ in 0..2 {
        watch.answer(due + GRACE + Duration::from_secs(1));
        assert_eq!(said.load(Ordering::SeqCst), 1);
    }
}
