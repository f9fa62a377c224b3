//! `onedrop lock`: list, holder, assert, release, steal.

use crate::place::{Held, Place, SOON, ended};
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
    assert_eq!(place.lock(&["holder", "nightly"]).out, format!("{}\n", lines[1]));
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

#[test]
fn a_lock_of_a_host_that_is_gone_is_made_free_by_hand() {
    let place = Place::new();
    for how in [&["release", "n", "--slot", "1", "--epoch"][..], &["steal", "n", "--force"]] {
        let mut held = holding(&place, &["n"]);
        let epoch = place.lock(&["holder", "n"]).out;
        let epoch = epoch.split("epoch=").nth(1).and_then(|rest| rest.split(' ').next());
        let epoch = epoch.expect("an epoch").to_owned();
        held.child.kill().expect("our child");
        held.child.wait().expect("its end");
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
