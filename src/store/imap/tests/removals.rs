//! What the store does to take one message out and no other, and to have it back where it cannot.

use super::*;

const MARK: &str = "UID STORE 42 +FLAGS.SILENT (\\Deleted)";
const UNMARK: &str = "UID STORE 42 -FLAGS.SILENT (\\Deleted)";

impl Peer {
    fn flags(&mut self, uid: u32, flags: &str) {
        let tag = self.expect(&format!("UID FETCH {uid} (FLAGS)"));
        let told = match flags {
            "" => String::new(),
            flags => {
                format!("* 9 FETCH (FLAGS (\\Seen))\r\n* 1 FETCH (UID {uid} FLAGS ({flags}))\r\n")
            }
        };
        self.say(format!("{told}{tag} OK done\r\n"));
    }
}

fn remove_double(world: &World) -> Result<(), StoreError> {
    let [double, keeper] = [42, 41].map(|uid| Receipt::Uid { validity: 7, uid });
    world.store.remove_double(&inbox(), &double, &keeper, soon())
}

#[test]
fn a_copy_is_taken_out_by_its_uid_and_nothing_else() {
    let world = World::logged_in(CAPABILITIES, |peer| {
        peer.open("SELECT");
        peer.answer("UID STORE 42 +FLAGS.SILENT (\\Deleted)", "OK");
        peer.answer("UID EXPUNGE 42", "OK");
        peer.open("SELECT");
        peer.answer("SELECT \"INBOX\"", "NO [NONEXISTENT] gone with all it held");
        peer.expect("LOGOUT");
    });
    let remove = |world: &World, receipt| world.store.remove(&inbox(), &receipt, soon());
    remove(&world, Receipt::Uid { validity: 7, uid: 42 }).unwrap();
    let error = remove(&world, Receipt::Uid { validity: 8, uid: 42 }).unwrap_err();
    assert!(is_not_stored(&error) && error.to_string().contains("UIDVALIDITY 7"), "{error}");
    remove(&world, Receipt::Uid { validity: 7, uid: 42 }).unwrap();
    assert!(is_not_stored(&remove(&world, Receipt::Unnamed).unwrap_err()));
    assert!(is_not_stored(&remove(&world, Receipt::Name("x".to_owned())).unwrap_err()));
    world.end();
}

#[test]
fn without_uidplus_nothing_is_marked_for_removal() {
    let world = World::logged_in("IMAP4rev1 SASL-IR", |peer| {
        peer.expect("LOGOUT");
    });
    let error =
        world.store.remove(&inbox(), &Receipt::Uid { validity: 7, uid: 42 }, soon()).unwrap_err();
    assert!(is_not_stored(&error) && error.to_string().contains("UIDPLUS"), "{error}");
    world.end();
}

#[test]
fn a_double_is_taken_out_while_its_keeper_stands() {
    let world = World::logged_in(CAPABILITIES, |peer| {
        peer.open("SELECT");
        peer.flags(42, "\\Seen");
        peer.answer(MARK, "OK");
        peer.flags(41, "$x");
        peer.answer("UID EXPUNGE 42", "OK");
        peer.expect("LOGOUT");
    });
    remove_double(&world).unwrap();
    for (double, keeper) in [(7, 42), (8, 41)] {
        let [double, keeper] =
            [(double, 42), (7, keeper)].map(|(validity, uid)| Receipt::Uid { validity, uid });
        assert!(is_not_stored(
            &world.store.remove_double(&inbox(), &double, &keeper, soon()).unwrap_err()
        ));
    }
    world.end();
}

#[test]
fn without_its_keeper_a_double_stays_and_is_no_longer_marked() {
    for keeper in ["", "\\Seen \\Deleted"] {
        let world = World::logged_in(CAPABILITIES, move |peer| {
            peer.open("SELECT");
            peer.flags(42, "\\Seen");
            peer.answer(MARK, "OK");
            peer.flags(41, keeper);
            peer.answer(UNMARK, "OK");
            peer.expect("LOGOUT");
        });
        let error = remove_double(&world).unwrap_err().to_string();
        assert!(error.contains("uid 41") && !error.contains("stays marked"), "{error}");
        world.end();
    }
}

#[test]
fn what_another_has_marked_or_taken_out_is_left_to_them() {
    for double in ["", "\\Deleted"] {
        let world = World::logged_in(CAPABILITIES, move |peer| {
            peer.open("SELECT");
            peer.flags(42, double);
            peer.expect("LOGOUT");
        });
        assert!(remove_double(&world).unwrap_err().to_string().contains("try again"));
        world.end();
    }
}

#[test]
fn a_mark_is_taken_back_where_the_removal_is_refused() {
    for (answer, is_left) in [("OK", false), ("NO not now", true)] {
        let world = World::logged_in(CAPABILITIES, move |peer| {
            peer.open("SELECT");
            peer.flags(42, "\\Seen");
            peer.answer(MARK, "OK");
            peer.flags(41, "\\Seen");
            peer.answer("UID EXPUNGE 42", "NO [NOPERM] not by you");
            peer.answer(UNMARK, answer);
            peer.open("SELECT");
            peer.answer(MARK, "OK");
            peer.answer("UID EXPUNGE 42", "NO [NOPERM] not by you");
            peer.answer(UNMARK, answer);
            peer.expect("LOGOUT");
        });
        let undone = |world: &World| {
            world.store.remove(&inbox(), &Receipt::Uid { validity: 7, uid: 42 }, soon())
        };
        for error in [remove_double(&world).unwrap_err(), undone(&world).unwrap_err()] {
            assert!(is_not_stored(&error) && error.to_string().contains("not by you"), "{error}");
            assert_eq!(
                error.to_string().contains("uid 42 stays marked as deleted"),
                is_left,
                "{error}"
            );
        }
        world.end();
    }
}
