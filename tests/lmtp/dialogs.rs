//! The server's connection by dialogs: each file in `fixtures/dialogs` is one (see
//! `dialog.rs`). What is said must be what the file says, before anything more is waited for,
//! and the same however the client's bytes are cut.

use crate::dialog::{self, Dialog, difference};
use crate::script::{Event, run, transcript};

#[test]
fn every_dialog_goes_as_its_file_says() {
    let mut wrong = Vec::new();
    for dialog in dialog::all() {
        let steps =
            run(dialog.settings.clone(), dialog.directory.clone(), dialog.events().into_iter());
        assert_eq!(steps.len(), dialog.steps.len(), "{}", dialog.name);
        for (number, (step, heard)) in dialog.steps.iter().zip(steps).enumerate() {
            if let Some(difference) = difference(&step.expected, &heard) {
                wrong.push(format!("{}, step {number}, line {difference}", dialog.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_dialog_goes_the_same_in_any_pieces() {
    for dialog in dialog::all() {
        let expected: Vec<String> =
            dialog.steps.iter().flat_map(|step| step.expected.clone()).collect();
        for size in [1, 2, 3, 7, 64, usize::MAX] {
            let script = in_pieces(&dialog, size).into_iter();
            let heard = transcript(dialog.settings.clone(), dialog.directory.clone(), script);
            if let Some(difference) = difference(&expected, &heard) {
                panic!("{} in pieces of {size}, line {difference}", dialog.name);
            }
        }
    }
}

/// What happens, without steps; what is said without a pause between is one text, said in pieces of
/// `size` bytes.
fn in_pieces(dialog: &Dialog, size: usize) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for event in dialog.events() {
        match (events.last_mut(), event) {
            (_, Event::Step) => {}
            (Some(Event::Says(before)), Event::Says(bytes)) => before.extend(bytes),
            (_, event) => events.push(event),
        }
    }
    let cut = |event| match event {
        Event::Says(bytes) => bytes.chunks(size).map(|piece| Event::Says(piece.to_vec())).collect(),
        event => vec![event],
    };
    events.into_iter().flat_map(cut).collect()
}
