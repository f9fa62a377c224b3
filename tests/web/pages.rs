//! A site with a story on every page, and the pages by their addresses.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use crate::support::letters;
use crate::support::site::{Files, Site, deliver, delivered, run};
use crate::support::{onedrop, wait_until};

pub const SCUBA: &str = "scuba@mail.axial.net";
/// A subject that would be a script if it were not text.
pub const HOSTILE: &str = "<script>document.title = 'taken'</script>";

const JOBS: &str = r#"
[web]
show_subjects = true
[jobs.nightly]
schedule = "17 3 * * *"
command = ["/bin/echo", "all is well"]
[jobs.broken]
every = "1h"
command = ["/bin/sh", "-c", "echo 'it is <b>broken</b>'; exit 3"]
"#;

/// A site; the lock lasts as long as this does, and another waits for it.
pub struct Story {
    pub site: Site<Files>,
    pub config: PathBuf,
    holder: Child,
    waiter: Child,
}

pub fn hostile_letter(id: &str) -> String {
    format!(
        "From: \"<b>Ann</b>\" <ann@elsewhere.example>\nTo: {SCUBA}\nSubject: {HOSTILE}\n\
         Date: Mon, 23 Nov 2026 10:00:00 +0000\nMessage-ID: <{id}@x.example>\n\n{id}\n"
    )
}

impl Story {
    pub fn new() -> Story {
        let site = Site::embedded();
        site.remember_for_ever();
        let config = site.config("web", JOBS);
        delivered(
            &config,
            &["-d", SCUBA, "-f", "ann@elsewhere.example", "--queue-id", "4F1c2B3x"],
            hostile_letter("hostile").as_bytes(),
        );
        for at in 0..3 {
            let letter = letters::one_of_many("list", at);
            delivered(&config, &["-d", "doug@mail.axial.net"], letter.as_bytes());
        }
        site.block("blocked");
        let failed = deliver(
            &config,
            &["-d", "blocked@mail.axial.net"],
            letters::from_ann("fails").as_bytes(),
        );
        assert_eq!(failed.status.code(), Some(75), "{failed:?}");
        let unknown = deliver(
            &config,
            &["-d", "nobody@other.example"],
            letters::from_ann("unknown").as_bytes(),
        );
        assert_eq!(unknown.status.code(), Some(67), "{unknown:?}");
        // A process that died with a lease, long ago.
        let changed = site.sqlite().execute(
            "UPDATE onedrop_copy SET in_doubt = 1, owner = 'mx9:77', leased_until = 0,
                    lease_boot = 'another', placed_at = NULL
             WHERE id = (SELECT max(id) FROM onedrop_copy WHERE account = 'doug')",
            [],
        );
        assert_eq!(changed.expect("the ledger"), 1);
        let host = "INSERT INTO onedrop_host (host, program_version, schema_version, seen_at,
                    clock_offset_ms) VALUES ('mx9', '0.1.0', 10, unixepoch(), 3)
                    ON CONFLICT DO NOTHING";
        site.sqlite().execute(host, []).expect("the ledger");
        for job in ["nightly", "broken"] {
            run(&config, &["jobs", "run", job, "--force"]);
        }
        let mut holder = onedrop();
        holder.args(["with-lock", "billing", "--note", "the run of November", "--config"]);
        holder.arg(&config).args(["--", "/bin/cat"]);
        let holder = holder.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a holder");
        let is_listed = |text: &str| {
            let is_there = || {
                let listed = run(&config, &["lock", "list"]);
                String::from_utf8_lossy(&listed.stdout).contains(text)
            };
            assert!(wait_until(std::time::Duration::from_secs(60), is_there), "no {text:?}");
        };
        is_listed("billing slot=1/1 ");
        let mut waiter = onedrop();
        waiter.args(["with-lock", "billing", "--wait", "1h", "--note", "December", "--config"]);
        waiter.arg(&config).args(["--", "true"]);
        let waiter = waiter.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("a waiter");
        is_listed("billing waits for 1/1 ");
        Story { site, config, holder, waiter }
    }

    /// One of every kind.
    pub fn paths(&self) -> Vec<String> {
        let number = self.site.ledger(
            "SELECT CAST(id AS TEXT) FROM onedrop_message WHERE message_id LIKE '%hostile%'",
        );
        let doubt = self.site.ledger(
            "SELECT CAST(message_id AS TEXT) FROM onedrop_copy WHERE in_doubt AND placed_at IS NULL
             AND account = 'doug'",
        );
        let mut paths: Vec<String> = [
            "/",
            "/search",
            "/search?q=doug",
            "/search?q=script&by=subject",
            "/search?q=nobody@other.example",
            "/search?q=none-such",
            "/failures",
            "/doubts",
            "/jobs",
            "/locks",
            "/hosts",
            "/nope",
        ]
        .map(str::to_owned)
        .to_vec();
        paths.push(format!("/m/{}", number[0]));
        paths.push(format!("/m/{}", doubt[0]));
        paths
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        // End of input ends cat, and with it the holder.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
        let _ = self.waiter.wait();
    }
}
