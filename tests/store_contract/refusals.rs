//! What a Maildir's file system refuses, and what others take away meanwhile.

use std::fs;
use std::os::unix::fs::symlink;

use super::rigs::{LOCKS, list};
use super::*;

/// Reserves the copy of a message, has something done to the Maildir, and appends.
fn append_after(
    rig: &MaildirRig,
    name: &str,
    meddle: impl FnOnce(),
) -> Result<Receipt, StoreError> {
    reserve(rig.store().as_ref(), &inbox(), &mail(name), Need::Write, |slot| {
        meddle();
        slot.expect("a slot").append()
    })
}

#[test]
fn a_link_that_is_refused_stores_nothing_and_any_other_failure_is_in_doubt() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let new = rig.folder("doug", "INBOX").join("new");
    let aside = rig.folder("doug", "INBOX").join("aside");
    let certainly: [(&str, &dyn Fn()); 3] = [
        ("no folder", &|| ()),
        ("a file", &|| fs::write(&new, "").expect("a file")),
        ("a link to nothing", &|| symlink("nothing", &new).expect("a link")),
    ];
    for (what, plant) in certainly {
        let refused = append_after(&rig, "refused", || {
            fs::rename(&new, &aside).expect("a rename");
            plant();
        });
        assert!(matches!(refused, Err(StoreError::NotStored(_))), "{what}: {refused:?}");
        let _ = fs::remove_file(&new);
        fs::rename(&aside, &new).expect("a rename");
    }
    // Too many links on the way: this does not say that no link was made.
    let failed = append_after(&rig, "refused", || {
        fs::rename(&new, &aside).expect("a rename");
        symlink("new", &new).expect("a link to itself");
    });
    assert!(matches!(failed, Err(StoreError::InDoubt(_))), "{failed:?}");
    fs::remove_file(&new).expect("removal");
    fs::rename(&aside, &new).expect("a rename");
    assert_eq!(subjects(&rig, &inbox()), ["there"]);
    assert!(list(&rig.folder("doug", "INBOX").join("tmp")).is_empty());
}

#[test]
fn a_folder_that_cannot_be_listed_is_no_empty_one() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let cur = rig.folder("doug", "INBOX").join("cur");
    fs::remove_dir(&cur).expect("removal");
    assert!(look(rig.store().as_ref(), &inbox(), &mail("there")).is_some(), "it may be missing");
    fs::remove_dir(&cur).expect("it was made again");
    fs::write(&cur, "").expect("a file");
    assert!(try_look(rig.store().as_ref(), &inbox(), &mail("there")).is_err());
}

#[test]
fn what_is_gone_needs_no_removal_and_what_cannot_be_removed_is_an_error() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let remove = |name: &str| rig.store().remove(&inbox(), &Receipt::name(name), None, soon());
    remove("new/gone").expect("it is gone");
    let victim = rig.root().join("victim");
    fs::write(&victim, "untouched").expect("a file");
    remove("new/../../../victim").expect("no file of this mailbox");
    assert!(victim.exists());
    fs::create_dir(rig.folder("doug", "INBOX").join("new/folder")).expect("a folder");
    let error = remove("new/folder").expect_err("a folder").to_string();
    assert!(error.contains("new/folder"), "{error}");
}

#[test]
fn a_double_is_one_file_whose_date_can_be_read() {
    let rig = MaildirRig::new();
    let name = name_of(&append(rig.store().as_ref(), &inbox(), &mail("two")));
    let remove = |double: &str, keeper: &str| {
        let [double, keeper] = [double, keeper].map(Receipt::name);
        let removed = rig.store().remove_double(&inbox(), &double, &keeper, soon());
        removed.expect_err("no double").to_string()
    };
    let new = rig.folder("doug", "INBOX").join("new");
    for (double, keeper) in [
        (format!("new/{name}:2,/../{name}"), name.as_str()),
        ("new/:2,S".to_owned(), ""),
        (format!("tmp/{name}"), &name),
    ] {
        let error = remove(&double, keeper);
        assert!(error.contains("does not name one file"), "{double}: {error}");
    }
    let error = remove(&format!("cur/{name}:2,S"), &name);
    assert!(error.contains("gone or renamed by now"), "{error}");
    let looped = format!("{name}:2,");
    symlink(&looped, new.join(&looped)).expect("a link to itself");
    let error = remove(&format!("new/{looped}"), &name);
    assert!(error.contains(&looped) && !error.contains("gone or renamed"), "{error}");
    assert!(new.join(&name).is_file());
}

#[test]
fn what_a_check_finds_is_said_of_the_folder_and_of_its_locks() {
    let rig = MaildirRig::new();
    let folder = rig.folder("doug", "INBOX");
    let check = || rig.store().check("doug", soon()).expect("a check");
    let (inbox_path, root) = (folder.display(), rig.root());
    let at_first =
        format!("{inbox_path} will be made at the first delivery; {} is writable", root.display());
    assert_eq!(check(), [at_first]);
    let makes_nothing = rig.store_that_makes_nothing().expect("a store");
    let error = makes_nothing.check("doug", soon()).expect_err("no Maildir").to_string();
    assert!(error.contains("is no Maildir and store.create_mailboxes is false"), "{error}");
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let exists = format!("{inbox_path} exists; {inbox_path} is writable");
    let locks = folder.join(LOCKS);
    let excludes = format!("locks in {} exclude each other", locks.display());
    assert_eq!(check(), [exists.clone(), excludes]);
    fs::remove_file(&locks).expect("removal");
    let will_be = format!("{} will be made by the next delivery", locks.display());
    assert_eq!(check(), [exists, will_be]);
    assert!(!locks.exists(), "a check makes none");
    fs::create_dir(&locks).expect("a folder");
    let error = rig.store().check("doug", soon()).expect_err("no file").to_string();
    assert!(error.contains(LOCKS), "{error}");
}

/// The file of the locks is made by the first that needs it, while others need it as well.
#[test]
fn those_that_make_the_file_of_locks_at_once_share_it() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let locks = rig.folder("doug", "INBOX").join(LOCKS);
    for round in 0..200 {
        fs::remove_file(&locks).expect("removal");
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for n in 0..4 {
                let (barrier, store) = (&barrier, rig.store());
                scope.spawn(move || {
                    barrier.wait();
                    assert!(is_free(store.as_ref(), &inbox(), &mail(&format!("{round}.{n}"))));
                });
            }
        });
    }
}
