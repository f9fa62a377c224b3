//! What is no doubt: mail of a ledger's first hour, mail that is replayed, and an attempt that
//! ended before it wrote anything.

use crate::served::Served;
use crate::support::letters;
use crate::support::site::{Site, deliver, delivered, run};

const SCUBA: &str = "scuba@mail.axial.net";
const NONE: &str = "no copy in doubt, no lease without an end";

fn out(ran: &std::process::Output) -> String {
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

#[test]
fn mail_of_the_first_hour_and_what_is_replayed_is_no_doubt() {
    let site = Site::embedded();
    let config = site.config("web", "");
    delivered(&config, &["-d", SCUBA], letters::from_ann("one").as_bytes());
    let old = ["two", "three"].map(|name| {
        let path = site.root.write(name, letters::from_ann(name));
        path.into_os_string().into_string().expect("a name")
    });
    let ran = run(&config, &["replay", "--to", SCUBA, &old[0], &old[1]]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(site.inbox("scuba").len(), 3);
    assert_eq!(site.ledger("SELECT group_concat(looks_back) FROM onedrop_copy"), ["1,1,1"]);
    let page = Served::start(&config, &[]).page("/doubts");
    assert!(!page.contains("href=\"/m/"), "{page}");
    let status = out(&run(&config, &["status"]));
    assert!(status.contains(NONE), "{status}");
    let trace = out(&run(&config, &["trace", SCUBA]));
    assert_eq!(trace.matches(": placed").count(), 3, "{trace}");
    assert!(!trace.contains("doubt"), "{trace}");
}

#[test]
fn what_failed_before_it_wrote_anything_is_not_delivered() {
    let site = Site::embedded();
    let config = site.config("web", "");
    site.block("scuba");
    for _ in 0..2 {
        let ran = deliver(&config, &["-d", SCUBA], letters::from_ann("one").as_bytes());
        assert_eq!(ran.status.code(), Some(75), "{ran:?}");
        let page = Served::start(&config, &[]).page("/doubts");
        assert!(page.contains("not delivered") && !page.contains("in doubt"), "{page}");
        let status = out(&run(&config, &["status"]));
        assert!(status.contains(NONE), "{status}");
        let trace = out(&run(&config, &["trace", SCUBA]));
        assert!(trace.contains(": not delivered"), "{trace}");
        assert!(!trace.contains("doubt"), "{trace}");
        let verified = run(&config, &["verify"]);
        assert_eq!(verified.status.code(), Some(0), "{verified:?}");
    }
}
