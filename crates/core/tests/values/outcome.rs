//! How a delivery ends, as a value, as a reply and as a line for Postfix.

use onedrop_core::deliver::Failure;
use onedrop_core::directory::UserdbError;
use onedrop_core::exit;
use onedrop_core::ledger::LedgerError;
use onedrop_core::outcome::{Outcome, Reason, Status};
use onedrop_core::store::StoreError;

#[test]
fn a_process_with_several_recipients_says_how_it_ended_for_each() {
    let copies = |accounts: &[&str]| {
        Outcome::Delivered(accounts.iter().map(|one| format!("stored account={one}")).collect())
    };
    let stored = |account: &str| copies(&[account, "lisa mailbox=Sent"]);
    let unknown = || Outcome::PermFail(Status::UNKNOWN_MAILBOX, "unknown".to_owned());
    let full = || Outcome::TempFail(Status::MAILBOX_FULL, "full".to_owned());
    let busy = || Outcome::TempFail(Status::TEMPORARY, "busy".to_owned());
    let temporary = |text: &str| Outcome::TempFail(Status::TEMPORARY, text.to_owned());
    for (ends, expected) in [
        (vec![("a", stored("a"))], stored("a")),
        (vec![("a", unknown())], unknown()),
        (vec![("a", busy()), ("b", busy())], busy()),
        (vec![("a", stored("a")), ("b", stored("b"))], copies(&["a", "lisa mailbox=Sent", "b"])),
        (
            vec![("a", copies(&["a"])), ("n", unknown())],
            Outcome::PermFail(
                Status::UNKNOWN_MAILBOX,
                "<n>: unknown; <a>: stored account=a".to_owned(),
            ),
        ),
        (vec![("n", unknown()), ("b", busy())], temporary("<b>: busy; <n>: 5.1.1 unknown")),
        (vec![("b", busy()), ("f", full())], temporary("<b>: busy; <f>: 4.2.2 full")),
        (vec![("a", busy()), ("b", temporary("held"))], temporary("<a>: busy; <b>: held")),
    ] {
        assert_eq!(Outcome::of_all(&ends), expected, "{ends:?}");
    }
}

/// Whether it is about one recipient alone, and whether no ledger has it.
#[test]
fn a_failure_says_whom_it_is_about_and_where_it_is_on_record() {
    let text = || "told to fail".to_owned();
    let away = || LedgerError::Unavailable(text());
    let account_gone = Failure::AccountGone { account: text(), why: text() };
    let address_gone = Failure::AddressGone { address: text(), account: text(), why: text() };
    for (failure, reason, is_of_one, is_unrecorded) in [
        (account_gone, Reason::AccountGone, true, false),
        (address_gone, Reason::AddressGone, true, false),
        (UserdbError::NotNow(text()).into(), Reason::Directory, true, false),
        (UserdbError::Away(text()).into(), Reason::Directory, false, false),
        (StoreError::NoAccount(text()).into(), Reason::NoAccount, true, false),
        (StoreError::Refused(text()).into(), Reason::MailboxRefused, false, false),
        (Failure::UnknownRecipient(text()), Reason::UnknownUser, false, false),
        (away().into(), Reason::LedgerDown, false, true),
        (LedgerError::OtherConfig(text()).into(), Reason::OtherConfig, false, false),
        (Failure::NotOnRecord(away()), Reason::LedgerDown, false, false),
        (Failure::Setup(text()), Reason::Setup, false, true),
        (Failure::Cut(text()), Reason::Cut, false, true),
        (Failure::Input(text()), Reason::Input, false, true),
        (Failure::Server(text()), Reason::Server, false, true),
        (Failure::Internal(text()), Reason::Internal, false, false),
    ] {
        let ending = failure.ending();
        let said = (ending.reason, failure.is_of_one_recipient(), ending.unrecorded);
        assert_eq!(said, (Some(reason), is_of_one, is_unrecorded), "{failure}");
        assert_eq!(ending.outcome, failure.outcome());
    }
}

#[test]
fn a_reply_is_read_strictly() {
    let cases = [
        (250, "2.0.0 stored account=a", Outcome::delivered("stored account=a")),
        (250, "2.0.0 a; b", Outcome::Delivered(vec!["a".into(), "b".into()])),
        (451, "4.3.0 later", Outcome::TempFail(Status::TEMPORARY, "later".into())),
        (452, "4.2.2 full", Outcome::TempFail(Status::MAILBOX_FULL, "full".into())),
        (550, "5.1.1 nobody", Outcome::PermFail(Status::UNKNOWN_MAILBOX, "nobody".into())),
        (552, "5.3.4 too big", Outcome::PermFail(Status::TOO_BIG, "too big".into())),
    ];
    for (code, text, outcome) in cases {
        assert_eq!(Outcome::of_reply(code, text), outcome);
    }
    let not_understood = [
        (250, "stored"),
        (250, "4.3.0 later"),
        (450, "5.1.1 nobody"),
        (550, "4.1.1 nobody"),
        (550, "nobody"),
        (550, "5.1 nobody"),
        (550, "5.1.1.1 nobody"),
        (550, "5.+1.1 nobody"),
        (550, "5.1.1111 nobody"),
        (550, ""),
        (503, "5.5.1 bad sequence"),
        (354, "2.0.0 go ahead"),
    ];
    for (code, text) in not_understood {
        let outcome = Outcome::of_reply(code, text);
        assert!(
            matches!(outcome, Outcome::TempFail(Status::TEMPORARY, _)),
            "{code} {text}: {outcome:?}"
        );
    }
}

#[test]
fn the_line_begins_with_the_status_and_holds_no_control_characters() {
    let outcome = Outcome::TempFail(Status::TEMPORARY, "a\r\nb\0c".to_owned());
    assert_eq!(exit::line(&outcome), "4.3.0 a  b\\u0000c\n");
    assert_eq!(exit::line(&Outcome::delivered("é".repeat(1000))).len(), 1001, "bytes");
}

#[test]
fn a_panic_is_temporary() {
    let outcome = exit::guard(|| panic!("boom"));
    assert_eq!(exit::status(&outcome) as i32, 75);
    assert_eq!(exit::line(&outcome), "4.3.0 internal error: boom\n");
}
