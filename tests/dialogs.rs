//! The LMTP protocol by dialogs: each file in `fixtures/dialogs` is one (see `lmtp/dialog.rs`). What is said must be what
//! the file says, at once after what the client sent, and the same however the client's bytes are cut.

#[path = "lmtp/dialog.rs"]
mod dialog;
#[path = "lmtp/session.rs"]
mod session;

use dialog::{Dialog, difference};
use session::Session;

#[test]
fn every_dialog_goes_as_its_file_says() {
    let mut wrong = Vec::new();
    for dialog in dialog::all() {
        let mut session = Session::new(dialog.settings.clone(), dialog.directory.clone());
        for (number, step) in dialog.steps.iter().enumerate() {
            session.now += step.wait;
            session.feed(&step.input);
            if let Some(difference) = difference(&step.expected, &std::mem::take(&mut session.transcript)) {
                wrong.push(format!("{}, step {number}, line {difference}", dialog.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_dialog_goes_the_same_in_any_pieces() {
    for dialog in dialog::all() {
        let expected: Vec<String> = dialog.steps.iter().flat_map(|step| step.expected.clone()).collect();
        for size in [1, 2, 3, 7, 64, usize::MAX] {
            let transcript = in_pieces(&dialog, size);
            if let Some(difference) = difference(&expected, &transcript) {
                panic!("{} in pieces of {size}, line {difference}", dialog.name);
            }
        }
    }
}

fn in_pieces(dialog: &Dialog, size: usize) -> Vec<String> {
    let mut session = Session::new(dialog.settings.clone(), dialog.directory.clone());
    for (wait, input) in dialog.parts() {
        session.now += wait;
        for piece in input.chunks(size) {
            session.feed(piece);
        }
    }
    session.transcript
}
