//! A program that cannot begin, or that Postfix ends: no delivery has judged the mail, so Postfix
//! tries again. The table of what it would return is the shipped one
//! (`conf/postfix/onedrop-status`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::postfix::{Delivery, Postfix, PostfixSpec, STATUS_FILTER, UNIX_DOMAIN};
use crate::support::{TempRoot, fixture_text, onedrop_path, set_mode, wait_until};

const LONG: Duration = Duration::from_secs(60);

/// The program, which needs a library that is not there: ld.so(8) ends it with 127.
fn without_a_library(root: &TempRoot) -> PathBuf {
    let mut program = fs::read(onedrop_path()).expect("the program");
    let name = b"\0libm.so.6\0";
    let at = program.windows(name.len()).position(|bytes| bytes == name).expect("a library");
    program[at + 4] = b'X';
    executable(root, &program)
}

fn executable(root: &TempRoot, content: &[u8]) -> PathBuf {
    let path = root.write("onedrop", content);
    set_mode(&path, 0o755);
    path
}

/// Sends one message, and returns what Postfix's log says of its delivery.
fn way_of(spec: &PostfixSpec, to: &str) -> String {
    let postfix = Postfix::start(spec);
    let queue_id = postfix.send("lisa@gmail.com", &[to], b"Subject: wait\n\nbody\n");
    let tried = wait_until(LONG, || !postfix.attempts(&queue_id).is_empty());
    assert!(tried, "{}", postfix.log());
    assert!(!postfix.queue_is_empty(), "{}", postfix.log());
    postfix.attempts(&queue_id).concat()
}

#[track_caller]
fn is_tried_again(way: &str, why: &str) {
    assert!(way.contains(" dsn=4.3.0, status=deferred "), "{way}");
    assert!(way.contains(why), "{way}");
}

#[test]
fn a_program_without_its_libraries_lets_mail_wait() {
    let root = TempRoot::new();
    let program = without_a_library(&root);
    let way = way_of(&PostfixSpec::new(&program), "scuba@mail.axial.net");
    is_tried_again(&way, "(Command died with status 127: ");
    let way = way_of(&local(&root, &program), &format!("nobody@{UNIX_DOMAIN}"));
    is_tried_again(&way, "(Command died with status 127: ");
}

#[test]
fn a_program_that_postfix_ends_lets_mail_wait() {
    let root = TempRoot::new();
    let program = executable(&root, b"#!/bin/sh\nexec sleep 1000\n");
    let limit = "onedrop_time_limit = 1s\ncommand_time_limit = 1s\n";
    let pipe = PostfixSpec { main_cf: limit.to_owned(), ..PostfixSpec::new(&program) };
    is_tried_again(&way_of(&pipe, "scuba@mail.axial.net"), "(Command time limit exceeded: ");
    let mut spec = local(&root, &program);
    spec.main_cf.push_str(limit);
    let way = way_of(&spec, &format!("nobody@{UNIX_DOMAIN}"));
    is_tried_again(&way, "(Command time limit exceeded: ");
}

/// With the shipped lines for `mailbox_command`.
fn local(root: &TempRoot, program: &Path) -> PostfixSpec {
    let shipped = fixture_text("conf/postfix/main.cf.onedrop");
    let line = format!("#local_delivery_status_filter = {STATUS_FILTER}\n");
    assert!(shipped.contains(&line), "{shipped}");
    let table = root.write("table", fixture_text("conf/postfix/onedrop-status"));
    PostfixSpec {
        delivery: Delivery::MailboxCommand(format!("{} deliver --via /x", program.display())),
        main_cf: format!("local_delivery_status_filter = regexp:{}\n", table.display()),
        ..PostfixSpec::new(program)
    }
}
