//! Lists that are longer than a page: each row is seen on some page, or the page says how many more
//! there are, and where.

use std::time::Duration;

use crate::served::Served;
use crate::support::site::{Files, Site, delivered, run};
use crate::support::{letters, wait_until};

/// Copies of the message with the most.
const COPIES: usize = 120;

/// A site with a message whose copies are not placed, between two with one such copy each.
fn site() -> (Site<Files>, Served) {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("web", "");
    for at in 0..3 {
        let letter = letters::one_of_many("doubt", at);
        delivered(&config, &["-d", "scuba@mail.axial.net"], letter.as_bytes());
    }
    let more = format!(
        "UPDATE onedrop_copy SET placed_at = NULL, owner = '';
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {COPIES} - 1)
         INSERT INTO onedrop_copy (value, message_id, account, mailbox, shared, epoch, owner,
                                   in_doubt, prior_doubt, looks_back)
         SELECT randomblob(16), 2, printf('many%03d', n), 'INBOX', 0, 1, '', 0, 0, 0 FROM n"
    );
    site.sqlite().execute_batch(&more).expect("copies");
    let served = Served::start(&config, &[]);
    (site, served)
}

/// The address of the next page, after this heading.
fn next(page: &str) -> Option<String> {
    let (_, rest) = page.split_once("<a rel=\"next\" href=\"/doubts?after=")?;
    Some(format!("/doubts?after={}", rest.split('"').next()?))
}

#[test]
fn doubts_are_all_seen_or_told_of() {
    let (_site, served) = site();
    let (mut pages, mut path) = (Vec::new(), "/doubts".to_owned());
    for _ in 0..10 {
        let page = served.page(&path);
        let following = next(&page);
        pages.push(page);
        let Some(following) = following else { break };
        path = following;
    }
    let all = pages.concat();
    // The message before and the one after, whole; of the long one a page.
    assert_eq!(all.matches("/m/1\"").count(), 1, "{all}");
    assert_eq!(all.matches("/m/3\"").count(), 1, "{all}");
    let rows = all.matches("<p><a href=\"/m/2\">").count();
    assert_eq!(rows, 50, "{all}");
    let told = format!(
        "{} more of the last message are not placed: <a href=\"/m/2\">its copies</a>",
        COPIES - rows
    );
    assert_eq!(all.matches(&told).count(), 1, "{told}: {all}");
    let cut = pages.iter().find(|page| page.contains(&told)).expect("a page");
    assert_eq!(cut.matches("<p><a href=\"/m/2\">").count(), 50, "told on another page");
    let story = served.page("/m/2");
    for at in 1..COPIES {
        assert!(story.contains(&format!(">many{at:03}</a>")), "many{at:03}");
    }
}

#[test]
fn short_tables_say_that_there_is_more() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("web", "[jobs.nightly]\nevery = \"1h\"\ncommand = [\"true\"]\n");
    delivered(&config, &["-d", "scuba@mail.axial.net"], letters::from_ann("one").as_bytes());
    assert!(run(&config, &["jobs", "run", "nightly", "--force"]).status.success());
    let fill = |jobs: usize, hosts: usize, reasons: usize| {
        site.sqlite()
            .execute_batch(&format!(
                "DELETE FROM onedrop_job_run; DELETE FROM onedrop_host;
                 DELETE FROM onedrop_attempt WHERE pid = 7;
                 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {jobs})
                 INSERT INTO onedrop_job_run (job, due_at, try, triggered_by, epoch, host, pid,
                     started_at, ended_at, outcome, exit_status, output, reason, last_due_at,
                     occurrences, begin_value)
                 SELECT name, n, 1, 'schedule', n, 'mx1', 1, n, n, 'ok', 0, '', '', n, 1,
                        randomblob(16)
                 FROM onedrop_job, n;
                 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {hosts})
                 INSERT INTO onedrop_host (host, program_version, schema_version, seen_at)
                 SELECT printf('mx%03d', n), '0.1.0', 10, unixepoch() FROM n;
                 WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n
                                          WHERE n < {reasons})
                 INSERT INTO onedrop_attempt (recipient, queue_id, host, pid, started_at, outcome,
                                              reason, duration_ms)
                 SELECT 'x@x.example', '', 'mx1', 7, unixepoch() - 60, 'tempfail',
                        printf('reason%d', n), 5 FROM n",
            ))
            .expect("rows");
    };
    let more = ["more are above", "onedrop_job_run</code> has", "onedrop_host</code> has"];
    for (rows, is_told) in [((10, 199, 6), false), ((11, 200, 8), true)] {
        fill(rows.0, rows.1, rows.2);
        // What is counted of attempts is kept: another process counts anew.
        let served = Served::start(&config, &[]);
        // The minutes of the last day are counted by and by.
        let is_counted = || {
            let page = served.page("/failures");
            !page.contains("No attempt failed") && !page.contains("still being counted")
        };
        assert!(wait_until(Duration::from_secs(60), is_counted));
        let pages = ["/failures", "/jobs", "/hosts"].map(|path| served.page(path));
        for (page, more) in pages.iter().zip(more) {
            assert_eq!(page.contains(more), is_told, "{more}: {page}");
        }
        assert_eq!(pages[1].matches("<th scope=\"row\">").count(), 10, "{}", pages[1]);
        if is_told {
            let reasons = "The 6 most frequent reasons; 2 more are above";
            assert!(pages[0].contains(reasons), "{}", pages[0]);
        }
    }
}
