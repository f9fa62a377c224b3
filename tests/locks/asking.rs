//! `onedrop lock`: list, holder, assert, release, steal.

use nix::sys::signal::{Signal, kill};

use crate::place::{Held, Place, SOON, ended};
use crate::support::postgres::Postgres;
use crate::support::wait_until;

fn holding(place: &Place, args: &[&str]) -> Held {
    let args = [args, &["--", "sleep", "600"]].concat();
    let held = Held { child: place.with_lock(&args).spawn().expect("binary") };
    let pid = format!(":{} sleep since", held.child.id());
    assert!(wait_until(SOON, || place.lock(&["list"]).out.contains(&pid)));
    held
}

#[test]
fn who_holds_which_lock_is_told_to_people_and_programs() {
    let place = Place::new();
    let end = place.lock(&["list"]);
    assert_eq!((end.code, &*end.out, &*end.err), (Some(0), "", ""));
    assert_eq!(place.lock(&["list", "--json"]).out, "[]\n");
    let end = place.lock(&["holder", "nightly"]);
    assert_eq!((end.code, &*end.out, &*end.err), (Some(1), "", ""));
    let a = holding(&place, &["nightly", "--note", "verify all"]);
    let _b = holding(&place, &["mailer", "--slots", "2"]);
    let list = place.lock(&["list"]).out;
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("mailer slot="), "{list}");
    let held_by = format!(":{} sleep since ", a.child.id());
    assert!(lines[1].starts_with("nightly slot=1/1 epoch=1 ") && lines[1].contains(&held_by));
    assert!(lines[1].ends_with(" s left  verify all"), "{list}");
    // Its seconds go on.
    let holder = place.lock(&["holder", "nightly"]).out;
    let who = |line: &str| line.split_once(" since ").map(|(who, _)| who.to_owned());
    assert_eq!(who(&holder), who(lines[1]));
    assert!(holder.lines().count() == 1 && holder.ends_with(" s left  verify all\n"), "{holder}");
    let json = place.lock(&["holder", "nightly", "--json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json[0]["name"], &json[0]["epoch"]), (&"nightly".into(), &1.into()));
    assert_eq!((&json[0]["note"], &json[0]["pid"]), (&"verify all".into(), &a.child.id().into()));
    assert!(json[0]["left_secs"].as_f64().is_some_and(|left| left > 30.0 && left <= 60.0));
    assert_eq!(place.lock(&["list", "--stale"]).out, "");
    place
        .site
        .sqlite()
        .execute("UPDATE onedrop_lock_lease SET lease_until = 0 WHERE epoch = 1", [])
        .expect("SQL");
    let stale = place.lock(&["list", "--stale"]).out;
    assert!(stale.lines().count() == 2 && stale.contains(", run out  verify all"), "{stale}");
    assert_eq!(place.lock(&["holder", "nightly"]).code, Some(1), "others may have it");
}

#[test]
fn a_lock_is_asserted_by_environment_or_token() {
    let place = Place::new();
    let script = "$ONEDROP lock assert && $ONEDROP lock assert n --min 5s &&
                  $ONEDROP lock assert \"$ONEDROP_LOCK_TOKEN\" >/dev/null || exit 3
                  $ONEDROP lock assert --min 10m; echo $?
                  $ONEDROP lock assert other; echo $?
                  $ONEDROP lock assert n#1:99; echo $?";
    let end = ended(&mut place.shell(&["n"], script));
    let out: Vec<&str> = end.out.lines().collect();
    assert_eq!((end.code, &out[2..]), (Some(0), &["201", "75", "201"][..]), "{end:?}");
    assert!(out[..2].iter().all(|left| left.parse::<u64>().is_ok_and(|left| left <= 60)));
    let err: Vec<&str> = end.err.lines().collect();
    assert!(err[0].starts_with("n#1:1 lasts ") && err[0].ends_with(" s only"), "{err:?}");
    assert_eq!(&err[1..], ["run under the lock n, not other", "n#1:99 is not held any more"]);
    let end = place.lock(&["assert", "n#1:1"]);
    assert_eq!((end.code, &*end.err), (Some(201), "n#1:1 is not held any more\n"));
    let end = place.lock(&["assert"]);
    assert_eq!(end.code, Some(75));
    assert!(end.err.contains("not run by onedrop with-lock"), "{end:?}");
}

/// The epoch is its own again, as after a restored ledger, and another holds it.
#[test]
fn a_lock_is_asserted_by_its_owner_too() {
    let place = Place::new();
    let script = "$ONEDROP lock assert >/dev/null && $ONEDROP lock assert n >/dev/null || exit 3
                  export ONEDROP_LOCK_OWNER=00112233445566778899aabbccddeeff
                  for name in '' n \"$ONEDROP_LOCK_TOKEN\"; do
                      $ONEDROP lock assert $name; echo $?
                  done
                  unset ONEDROP_LOCK_OWNER; $ONEDROP lock assert >/dev/null";
    let end = ended(&mut place.shell(&["n"], script));
    assert_eq!((end.code, &*end.out), (Some(0), "201\n201\n201\n"), "{end:?}");
    assert_eq!(end.err, "n#1:1 is not held any more\n".repeat(3));
}

/// What the name says if it is read as a token is held, too.
#[test]
fn a_name_that_looks_like_a_token_is_a_name() {
    let place = Place::new();
    assert_eq!(ended(&mut place.with_lock(&["a", "--", "true"])).code, Some(0));
    let _a = holding(&place, &["a"]);
    assert_eq!(place.lock(&["assert", "a#1:2"]).code, Some(0), "a token");
    let script = "$ONEDROP lock assert 'a#1:2' >/dev/null || exit 3
                  $ONEDROP lock steal 'a#1:2' --force >/dev/null
                  $ONEDROP lock assert 'a#1:2'; echo $?";
    let end = ended(&mut place.shell(&["a#1:2"], script));
    assert_eq!((end.code, &*end.out), (Some(201), "201\n"), "{end:?}");
    assert!(end.err.starts_with("a#1:2#1:1 is not held any more\n"), "{end:?}");
}

/// The command says what it has done though it could not do all.
#[test]
fn a_slot_that_cannot_be_stolen_now_keeps_no_other_from_it() {
    let postgres = Postgres::shared();
    let place = Place::with(&postgres.toml());
    for slot in [1, 2, 3] {
        postgres.psql(&format!(
            "INSERT INTO onedrop_lock (name_hash, slot, name, epoch, acquired_at)
             SELECT sha256('onedrop/1/name'::bytea || '\\x00'::bytea || 'n'), {slot}, 'n', 1, now();
             INSERT INTO onedrop_lock_lease (name_hash, slot, epoch, owner, lease_ms, lease_until)
             SELECT name_hash, slot, 1, decode(md5('x'), 'hex'), 1, now() - interval '1 hour'
             FROM onedrop_lock WHERE slot = {slot}"
        ));
    }
    let mut open =
        ::postgres::Client::connect(&postgres.url_socket(), ::postgres::NoTls).expect("a session");
    let mut transaction = open.transaction().expect("a transaction");
    transaction
        .execute("SELECT FROM onedrop_lock WHERE slot = 2 FOR SHARE", &[])
        .expect("an open assertion");
    let end = place.lock(&["steal", "n"]);
    assert_eq!(end.code, Some(75), "{end:?}");
    let stolen: Vec<&str> = end.out.lines().collect();
    assert!(stolen.len() == 2 && stolen[0].starts_with("n: stole slot 1 "), "{end:?}");
    assert!(stolen[1].starts_with("n: stole slot 3 "), "{end:?}");
    let why = "n: slot 2: another claims it, or a transaction that has asserted the lock is open";
    assert!(end.err.starts_with(why) && end.err.lines().count() == 1, "{end:?}");
    transaction.rollback().expect("its end");
    let end = place.lock(&["steal", "n"]);
    assert!(end.code == Some(0) && end.out.starts_with("n: stole slot 2 "), "{end:?}");
}

#[test]
fn a_lock_of_a_host_that_is_gone_is_made_free_by_hand() {
    let place = Place::new();
    for how in [&["release", "n", "--slot", "1", "--epoch"][..], &["steal", "n", "--force"]] {
        let mut held = holding(&place, &["n"]);
        let epoch = place.lock(&["holder", "n"]).out;
        let epoch = epoch.split("epoch=").nth(1).and_then(|rest| rest.split(' ').next());
        let epoch = epoch.expect("an epoch").to_owned();
        // Its guardian would give the lock back.
        let guardian = held.guardian();
        kill(guardian, Signal::SIGSTOP).expect("its child");
        held.child.kill().expect("our child");
        held.child.wait().expect("its end");
        kill(guardian, Signal::SIGKILL).expect("a child of its");
        let end = ended(&mut place.with_lock(&["n", "--", "true"]));
        assert_eq!(end.code, Some(200), "it lasts for its TTL: {end:?}");
        let how = if how[0] == "release" { [how, &[&epoch]].concat() } else { how.to_vec() };
        let end = place.lock(&how);
        assert_eq!(end.code, Some(0), "{how:?}: {end:?}");
        let end = place.lock(&how);
        assert_eq!((end.code, &*end.out), (Some(1), ""), "{how:?}: {end:?}");
        assert_eq!(ended(&mut place.with_lock(&["n", "--", "true"])).code, Some(0), "{how:?}");
    }
}

#[test]
fn two_numbers_of_slots_under_one_name_are_told() {
    let place = Place::new();
    let _held = holding(&place, &["n", "--slots", "1"]);
    let end = ended(&mut place.with_lock(&["n", "--slots", "2", "--", "true"]));
    assert_eq!(end.code, Some(0), "{end:?}");
    assert_eq!(end.err, "onedrop: warning: n is held with --slots 1, here with 2\n");
}
