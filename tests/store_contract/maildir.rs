//! What Maildirs promise besides: names and dates that others may have, folders and locks that
//! lead nowhere else.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use super::rigs::{LOCKS, list};
use super::*;
use crate::support::TempRoot;

/// Puts a file of that name, with the date of an append of ours, beside the others.
fn put(rig: &MaildirRig, name: &str, date: SystemTime) -> PathBuf {
    let path = rig.folder("doug", "INBOX").join(name);
    fs::write(&path, mail("two").own_copy()).expect("a file");
    fs::File::options()
        .append(true)
        .open(&path)
        .and_then(|file| file.set_modified(date))
        .expect("a date");
    path
}

#[test]
fn the_copy_that_is_to_stay_goes_by_its_name() {
    let rig = MaildirRig::new();
    let name = name_of(&append(rig.store().as_ref(), &inbox(), &mail("two")));
    fs::remove_file(rig.folder("doug", "INBOX").join("new").join(&name)).expect("removal");
    let later = recorded_at() + Duration::from_secs(1);
    let cases = [
        (("", recorded_at()), (":2,ST", recorded_at()), "new", "the second is marked as deleted"),
        ((":2,", recorded_at()), (":2,S", later), "cur", "the second is not ours"),
        ((":2,S", later), (":2,T", recorded_at()), "cur", "a mark counts for more than a date"),
        (("", recorded_at()), (":2,S", recorded_at()), "cur", "the second was read"),
    ];
    for ((first, first_date), (second, second_date), stays, why) in cases {
        let sub = if first.is_empty() { "new" } else { "cur" };
        let paths = [
            put(&rig, &format!("{sub}/{name}{first}"), first_date),
            put(&rig, &format!("cur/{name}{second}"), second_date),
        ];
        let keeper = if why.starts_with("the second was read") { &paths[1] } else { &paths[0] };
        let store = rig.store();
        let found = find(store.as_ref(), &inbox(), &mail("two"), None);
        let lasting: Vec<bool> = found.iter().map(|one| one.is_lasting()).collect();
        assert_eq!(lasting, [false, true], "{why}: {found:?}");
        assert_eq!(
            look(store.as_ref(), &inbox(), &mail("two")),
            Some(Receipt::name(name.clone())),
            "{why}"
        );
        store.remove(&inbox(), &found[0].receipt, None, soon()).expect("removal");
        assert_eq!(rig.files("doug", "INBOX"), std::slice::from_ref(keeper), "{why}");
        assert!(keeper.parent().is_some_and(|folder| folder.ends_with(stays)), "{why}");
        fs::remove_file(keeper).expect("removal");
    }
}

/// A file's name has up to 255 bytes, the dot in front among them.
#[test]
fn a_folders_name_is_as_long_as_a_files_may_be() {
    let rig = MaildirRig::new();
    let named = |bytes| Destination::sent("doug", &"x".repeat(bytes));
    append(rig.store().as_ref(), &named(254), &mail("one"));
    assert_eq!(subjects(&rig, &named(254)), ["one"]);
    let refused = try_append(rig.store().as_ref(), &named(255), &mail("one"));
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    rig.assert_nothing_outside();
}

/// Messages that differ in their NULs alone are two copies there.
#[test]
fn nul_is_kept() {
    let rig = MaildirRig::new();
    assert!(rig.store().keeps_nul());
    let nul = message(b"Subject: nul\n\na\0b\n");
    append(rig.store().as_ref(), &inbox(), &nul);
    assert!(rig.messages("doug", "INBOX")[0].0.ends_with(b"a\0b\n"));
}

#[test]
fn a_double_stays_where_its_keeper_does_not() {
    let rig = MaildirRig::new();
    let name = name_of(&append(rig.store().as_ref(), &inbox(), &mail("two")));
    let double = Receipt::name(format!("new/{name}"));
    let remove = |double: &Receipt| {
        rig.store().remove_double(&inbox(), double, &Receipt::name(name.clone()), soon())
    };
    assert!(remove(&double).is_err(), "alone");
    let later = recorded_at() + Duration::from_secs(1);
    for (flags, date) in [(":2,ST", recorded_at()), (":2,S", later)] {
        let other = put(&rig, &format!("cur/{name}{flags}"), date);
        let error = remove(&double).expect_err("no keeper").to_string();
        assert!(error.contains("which was to stay"), "{error}");
        assert_eq!(rig.files("doug", "INBOX").len(), 2, "it is put back");
        rig.assert_nothing_outside();
        fs::remove_file(other).expect("removal");
    }
    assert_eq!(rig.dates("doug", "INBOX"), Some(vec![recorded_at()]), "with its date");
    let keeper = put(&rig, &format!("cur/{name}:2,S"), recorded_at());
    for refused in [Receipt::name(name.clone()), Receipt::name(format!("cur/{name}:2,"))] {
        assert!(
            remove(&refused).is_err(),
            "{refused}: both have its name, or a reader has renamed it"
        );
        assert_eq!(rig.files("doug", "INBOX").len(), 2);
    }
    let other = name_of(&append(rig.store().as_ref(), &inbox(), &mail("other")));
    assert!(
        remove(&Receipt::name(format!("new/{other}"))).is_err(),
        "another message of the same second"
    );
    rig.store().remove(&inbox(), &Receipt::name(other), None, soon()).expect("removal");
    remove(&double).expect("removal");
    assert_eq!(rig.files("doug", "INBOX"), [keeper]);
    rig.assert_nothing_outside();
}

/// A removal links the double to a name under tmp/, takes its own away, and then that one.
#[test]
fn what_a_killed_removal_left_is_put_back_or_taken_out() {
    let rig = MaildirRig::new();
    let name = name_of(&append(rig.store().as_ref(), &inbox(), &mail("two")));
    let folder = rig.folder("doug", "INBOX");
    let new = folder.join("new").join(&name);
    let cur = folder.join("cur").join(format!("{name}:2,S"));
    let found = || find(rig.store().as_ref(), &inbox(), &mail("two"), None).len();
    for (file, stands, why) in [
        (&new, true, "killed before it took its own name away"),
        (&new, false, "killed before it looked for the one that was to stay, which is gone"),
        (&cur, false, "the same, of a file that was read"),
    ] {
        if !file.exists() {
            fs::rename(&new, file).expect("read");
        }
        let aside = file.file_name().expect("a name").to_string_lossy().into_owned();
        let aside = folder.join("tmp").join(format!("{aside}.77.double"));
        fs::hard_link(file, &aside).expect("a link");
        if !stands {
            fs::remove_file(file).expect("removal");
        }
        assert_eq!(found(), 1, "{why}");
        assert_eq!(rig.files("doug", "INBOX"), std::slice::from_ref(file), "{why}");
        assert_eq!(rig.dates("doug", "INBOX"), Some(vec![recorded_at()]), "{why}");
        rig.assert_nothing_outside();
    }
    // The one that was to stay does.
    fs::rename(
        put(&rig, "cur/other", recorded_at()),
        folder.join("tmp").join(format!("{name}.77.double")),
    )
    .expect("an end");
    assert_eq!((found(), rig.files("doug", "INBOX")), (1, vec![cur]));
    rig.assert_nothing_outside();
}

/// What stands may be no reason for the double to go, and what is no double of ours is no affair.
#[test]
fn what_a_killed_removal_left_is_put_back_beside_what_its_owner_may_throw_away() {
    let later = recorded_at() + Duration::from_secs(1);
    for (stands, date) in [("cur/NAME:2,ST", recorded_at()), ("cur/NAME:2,S", later)] {
        let rig = MaildirRig::new();
        let name = name_of(&append(rig.store().as_ref(), &inbox(), &mail("two")));
        let folder = rig.folder("doug", "INBOX");
        let new = folder.join("new").join(&name);
        fs::rename(&new, folder.join(format!("tmp/{name}.77.double"))).expect("a removal");
        let stands = put(&rig, &stands.replace("NAME", &name), date);
        for none_of_ours in [".77.double", "x.double", "77.double"] {
            fs::write(folder.join("tmp").join(none_of_ours), "").expect("a file");
        }
        assert_eq!(find(rig.store().as_ref(), &inbox(), &mail("two"), None).len(), 2);
        assert!(new.is_file() && stands.is_file());
        let left = fs::read_dir(folder.join("tmp")).expect("a folder").count();
        assert_eq!(left, 3);
    }
}

/// Another file has its name by now, and it may be the only one of its kind.
#[test]
fn what_a_killed_removal_left_stays_where_its_name_is_taken() {
    let later = recorded_at() + Duration::from_secs(1);
    for is_same in [false, true] {
        let rig = MaildirRig::new();
        let name = name_of(&append(rig.store().as_ref(), &inbox(), &mail("two")));
        let (folder, file) = (rig.folder("doug", "INBOX"), format!("{name}:2,T"));
        let (aside, taken) = (folder.join(format!("tmp/{file}.77.double")), folder.join("cur"));
        fs::rename(folder.join("new").join(&name), &aside).expect("a removal");
        match is_same {
            true => fs::hard_link(&aside, taken.join(&file)).expect("a link"),
            false => drop(put(&rig, &format!("cur/{file}"), later)),
        }
        assert_eq!(find(rig.store().as_ref(), &inbox(), &mail("two"), None).len(), 1);
        assert_eq!((aside.is_file(), taken.join(&file).is_file()), (!is_same, true));
    }
}

#[test]
fn a_message_id_is_found_after_a_long_header() {
    let rig = MaildirRig::new();
    let fill = "X-Fill: of a mail program\r\n".repeat(1500);
    let other = message(format!("{fill}Message-ID: <two@example.org>\r\n\r\nother\r\n"));
    append(rig.store().as_ref(), &sent(), &other);
    let found = find_by_id(rig.store().as_ref(), &sent(), &mail("two"), None);
    let proofs: Vec<Proof> = found.iter().map(|one| one.proof).collect();
    assert_eq!(proofs, [Proof::SameId]);
}

#[test]
fn an_account_without_a_maildir_is_refused_where_none_may_be_made() {
    let rig = MaildirRig::new();
    let store = rig.store_that_makes_nothing().expect("a store");
    let refused = try_append(store.as_ref(), &inbox(), &mail("refused"));
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    assert!(list(&rig.root()).is_empty());
}

#[test]
fn a_made_mailbox_is_subscribed_once_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let rig = MaildirRig::new();
    for name in ["a", "b"] {
        append(rig.store().as_ref(), &sent(), &mail(name));
        append(rig.store().as_ref(), &Destination::sent("lisa", "Other"), &mail(name));
    }
    let inbox = rig.folder("lisa", "INBOX");
    assert_eq!(
        fs::read_to_string(inbox.join("subscriptions")).expect("subscriptions"),
        "Sent\nOther\n"
    );
    assert!(inbox.join(".Sent/maildirfolder").is_file());
    for path in
        rig.files("lisa", "Sent").iter().chain([&inbox.join("new"), &inbox.join(".Sent/cur")])
    {
        let mode = fs::metadata(path).expect("a mode").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
}

#[test]
fn a_folder_that_cannot_be_written_or_read_is_no_missing_mailbox() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    // A file in the place of a folder fails for root as well, whom no permission stops.
    let new = rig.folder("doug", "INBOX").join("new");
    let aside = rig.folder("doug", "INBOX").join("aside");
    fs::rename(&new, &aside).expect("a rename");
    fs::write(&new, "").expect("a file");
    let store = rig.store();
    assert!(try_look(store.as_ref(), &inbox(), &mail("there")).is_err());
    let refused = try_append(store.as_ref(), &inbox(), &mail("refused"));
    assert!(refused.is_err_and(|error| error.certainly_not_stored()));
    fs::remove_file(&new).expect("removal");
    fs::rename(&aside, &new).expect("a rename");
    append(store.as_ref(), &inbox(), &mail("refused"));
    assert_eq!(subjects(&rig, &inbox()), ["refused", "there"]);
}

#[test]
fn the_file_of_its_locks_leads_nowhere_and_holds_nobody_up() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let locks = rig.folder("doug", "INBOX").join(LOCKS);
    let outside = TempRoot::new();
    let (missing, victim) = (outside.join("missing"), outside.join("victim"));
    fs::write(&victim, "untouched").expect("a file");
    let plant_link = |target: &Path| std::os::unix::fs::symlink(target, &locks).expect("a link");
    let plants: [(&str, &dyn Fn()); 4] = [
        ("a link to nothing", &|| plant_link(&missing)),
        ("a link to a file", &|| plant_link(&victim)),
        ("a pipe", &|| nix::unistd::mkfifo(&locks, nix::sys::stat::Mode::S_IRWXU).expect("a pipe")),
        ("a folder", &|| fs::create_dir(&locks).expect("a folder")),
    ];
    for (what, plant) in plants {
        let _ = fs::remove_file(&locks);
        plant();
        let (store, (done, is_done)) = (rig.store(), channel());
        // An open of a pipe would wait for ever.
        thread::spawn(move || {
            let reserved = [Need::Look, Need::Early].map(|need| {
                let (held, deadline) = (mail("held"), ample());
                let reservation = (need, recorded_at(), &deadline);
                try_reserve(store.as_ref(), &inbox(), &held, reservation, |slot| slot.is_some())
            });
            let _ = done.send(reserved);
        });
        let [reserved, early] = is_done
            .recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|_| panic!("{what}: it hangs"));
        let error = reserved.expect_err(what);
        assert!(
            matches!(error, StoreError::NotStored(_)) && error.to_string().contains(LOCKS),
            "{what}: {error}"
        );
        assert!(matches!(early, Ok(false)), "{what}");
        assert_eq!(list(&outside), std::slice::from_ref(&victim), "{what}");
        assert_eq!(fs::read_to_string(&victim).expect("a file"), "untouched", "{what}");
        assert_eq!(subjects(&rig, &inbox()), ["there"], "{what}");
        assert!(list(&rig.folder("doug", "INBOX").join("tmp")).is_empty(), "{what}");
    }
    fs::remove_dir(&locks).expect("removal");
    assert!(is_free(rig.store().as_ref(), &inbox(), &mail("held")), "as soon as it is gone");
}

/// Every file and folder below, with its size and its last change.
fn all_below(folder: &Path) -> Vec<(PathBuf, u64, SystemTime)> {
    let mut all = Vec::new();
    for path in list(folder) {
        let made = fs::symlink_metadata(&path).expect("facts");
        all.push((path.clone(), made.len(), made.modified().expect("a date")));
        if made.is_dir() {
            all.extend(all_below(&path));
        }
    }
    all
}

/// A restored backup may lack what was empty.
#[test]
fn a_part_of_a_maildir_that_is_gone_is_made_again() {
    let lists = Destination { mailbox: "lists".to_owned(), ..inbox() };
    for (destination, parts) in
        [(inbox(), &["tmp", "cur", "new"][..]), (sent(), &["tmp", "cur", "new"]), (lists, &["tmp"])]
    {
        for part in parts {
            let rig = MaildirRig::new();
            // A shared copy makes its mailbox, a recipient's own does not.
            let made = Destination { shared: true, ..destination.clone() };
            append(rig.store().as_ref(), &made, &mail("there"));
            let folder = rig.folder(&destination.account, &destination.mailbox);
            fs::remove_dir_all(folder.join(part)).expect("removal");
            append(rig.store().as_ref(), &destination, &mail("two"));
            assert!(subjects(&rig, &destination).contains(&"two".to_owned()), "{part}");
        }
    }
}

#[test]
fn a_list_of_subscriptions_in_another_charset_keeps_no_folder_from_being_made() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &Destination::inbox("lisa"), &mail("there"));
    let path = rig.folder("lisa", "INBOX").join("subscriptions");
    fs::write(&path, b"Caf\xe9\n").expect("a file");
    append(rig.store().as_ref(), &sent(), &mail("two"));
    assert_eq!(fs::read(&path).expect("a file"), b"Caf\xe9\nSent\n");
}

/// Else the mail would be filed in INBOX for good, or a second time.
#[test]
fn a_folder_that_cannot_be_looked_at_is_not_taken_for_missing() {
    let rig = MaildirRig::new();
    let lists = Destination { mailbox: "lists".to_owned(), ..inbox() };
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let folder = rig.folder("doug", "lists");
    std::os::unix::fs::symlink(&folder, &folder).expect("a link to itself");
    let looked = try_look(rig.store().as_ref(), &lists, &mail("two"));
    assert!(matches!(looked, Err(StoreError::NotStored(_))), "{looked:?}");
    let deadline = ample();
    let stored = append_as(rig.store().as_ref(), &lists, &mail("two"), (recorded_at(), &deadline));
    assert!(matches!(stored, Err(StoreError::NotStored(_))), "{stored:?}");
    assert_eq!(subjects(&rig, &inbox()), ["there"]);
}

/// The folder may be its owner's: what is planted there leads nowhere, and no delivery hangs in it.
#[test]
fn a_new_folder_is_made_behind_no_link_and_waits_for_no_pipe() {
    let outside = TempRoot::new();
    let missing = outside.join("missing");
    let link = |path: &Path| std::os::unix::fs::symlink(&missing, path).expect("a link");
    let pipe =
        |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let plants: [&dyn Fn(&Path); 2] = [&link, &pipe];
    for (plant, name) in plants
        .into_iter()
        .flat_map(|plant| ["subscriptions", ".Sent/maildirfolder"].map(|name| (plant, name)))
    {
        let rig = MaildirRig::new();
        append(rig.store().as_ref(), &Destination::inbox("lisa"), &mail("there"));
        let path = rig.folder("lisa", "INBOX").join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        plant(&path);
        let (store, (done, is_done)) = (rig.store(), channel());
        thread::spawn(move || {
            let deadline = ample();
            let stored =
                append_as(store.as_ref(), &sent(), &mail("two"), (recorded_at(), &deadline));
            let _ = done.send(stored.map(drop));
        });
        let stored = is_done.recv_timeout(Duration::from_secs(60));
        let stored = stored.unwrap_or_else(|_| panic!("{name}: it hangs"));
        assert!(!missing.exists(), "{name}: {stored:?}");
        fs::remove_file(&path).expect("removal");
        append(rig.store().as_ref(), &sent(), &mail("two"));
        assert_eq!(subjects(&rig, &sent()), ["two"], "{name}");
    }
}

/// What root made there would shut its owner out, and a link could lead it elsewhere.
#[test]
fn root_writes_nothing_into_anothers_mailbox() {
    let (rig, outside) = (MaildirRig::new(), TempRoot::new());
    let store = rig.store();
    let lisa = Destination::inbox("lisa");
    let there = append(store.as_ref(), &lisa, &mail("there"));
    let name = name_of(&there);
    let maildir = rig.folder("lisa", "INBOX");
    let aside = maildir.join(format!("tmp/{name}.77.double"));
    fs::remove_file(maildir.join(LOCKS)).expect("removal");
    let above = maildir.parent().expect("a folder").to_owned();
    fs::create_dir(outside.join("victim")).expect("a folder");
    let (owner, victim) = (Some(65534), outside.join("victim"));
    // Its own folder; the one above; and a link of its owner's to a folder of root's.
    for of_another in [&maildir, &above, &rig.folder("zoe", "INBOX")] {
        if of_another.exists() {
            std::os::unix::fs::chown(of_another, owner, owner).expect("chown");
        } else {
            fs::create_dir_all(of_another.parent().expect("a folder")).expect("a folder");
            std::os::unix::fs::symlink(&victim, of_another).expect("a link");
            std::os::unix::fs::lchown(of_another, owner, owner).expect("chown");
        }
        let (account, place) = match of_another.starts_with(&above) {
            true => ("lisa", above.clone()),
            false => ("zoe", victim.clone()),
        };
        let before = all_below(&place);
        for destination in [Destination::inbox(account), Destination::sent(account, "Sent")] {
            let refused = try_append(store.as_ref(), &destination, &mail("refused"));
            let refused = refused.expect_err("root");
            assert!(matches!(refused, StoreError::Setup(_)), "{refused}");
            let told = format!("{} belongs to nobody, and root", of_another.display());
            assert!(refused.to_string().contains(&told), "{refused}");
        }
        if account == "lisa" {
            let double = Receipt::name(format!("new/{name}"));
            let refused = store.remove_double(&lisa, &double, &there, soon()).expect_err("root");
            assert!(matches!(refused, StoreError::Setup(_)), "{refused}");
            assert_eq!(find(store.as_ref(), &lisa, &mail("there"), None).len(), 1, "it may look");
        }
        assert_eq!(all_below(&place), before);
        if account == "lisa" {
            // A killed removal may hide a copy.
            fs::write(&aside, "").expect("a file");
            let before = all_below(&place);
            let refused = store.find_all(&lisa, &[], soon()).expect_err("root");
            assert!(matches!(refused, StoreError::Setup(_)), "{refused}");
            assert_eq!(all_below(&place), before);
            fs::remove_file(&aside).expect("removal");
        }
        if of_another.is_dir() && !of_another.is_symlink() {
            std::os::unix::fs::chown(of_another, Some(0), Some(0)).expect("chown");
        }
    }
    append(store.as_ref(), &Destination::inbox("lisa"), &mail("own"));
}

#[test]
fn a_link_in_place_of_the_list_of_subscriptions_is_not_followed() {
    let (rig, outside) = (MaildirRig::new(), TempRoot::new());
    let store = rig.store();
    append(store.as_ref(), &Destination::inbox("lisa"), &mail("there"));
    let victim = outside.write("victim", "untouched");
    let subscriptions = rig.folder("lisa", "INBOX").join("subscriptions");
    std::os::unix::fs::symlink(&victim, &subscriptions).expect("a link");
    let refused = try_append(store.as_ref(), &sent(), &mail("sent"));
    assert!(refused.expect_err("a link").certainly_not_stored());
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "untouched");
}

#[test]
fn no_lock_is_taken_where_no_mailbox_may_be_made() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &Destination::inbox("lisa"), &mail("there"));
    let store = rig.store_that_makes_nothing().expect("a store");
    for destination in [inbox(), sent()] {
        let error = try_look(store.as_ref(), &destination, &mail("refused"));
        let error = error.expect_err("no mailbox");
        assert!(
            error.certainly_not_stored() && error.to_string().contains("create_mailboxes"),
            "{error}"
        );
        reserve(store.as_ref(), &destination, &mail("refused"), Need::Early, |slot| {
            assert!(slot.is_none());
        });
    }
    assert_eq!(list(&rig.root()), [rig.root().join("lisa")]);
    assert!(!rig.folder("lisa", "Sent").exists());
    assert!(
        is_free(store.as_ref(), &Destination::inbox("lisa"), &mail("refused")),
        "where there is one"
    );
}

/// Nothing marks a folder.
#[test]
fn the_mailbox_for_sent_mail_has_the_usual_name() {
    let rig = MaildirRig::new();
    let role = Destination::sent("lisa", "\\sent");
    append(rig.store().as_ref(), &role, &mail("two"));
    assert_eq!(rig.files("lisa", "Sent").len(), 1);
    assert!(look(rig.store().as_ref(), &role, &mail("two")).is_some());
    let known = fs::read_to_string(rig.folder("lisa", "INBOX").join("subscriptions"));
    assert_eq!(known.expect("subscriptions"), "Sent\n");
}
