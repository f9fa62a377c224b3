//! The jobs of the configuration: one that is added or taken out is seen without a restart, and
//! where their sections are wrong, nothing is said against those that are on record.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use onedrop::hook::{Call, Hook};
use onedrop::ledger::LedgerError;
use onedrop::web::{self, ConfiguredJobs};

use crate::served::Served;
use crate::support::site::{Site, run};
use crate::support::wait_until;
use crate::wire::{InProcess, LONG};

/// Takes out jobs that are in no configuration any more.
const REMOVE: &str = "onedrop jobs audit --remove-ghosts";

struct Well;

impl Hook<LedgerError> for Well {
    fn before(&self, _: &Call<'_>) -> Result<(), LedgerError> {
        Ok(())
    }
}

fn job(name: &str) -> String {
    format!("[jobs.{name}]\nevery = \"1h\"\ncommand = [\"true\"]\n")
}

#[test]
fn a_job_that_is_added_or_taken_out_is_seen_without_a_restart() {
    let site = Site::embedded();
    let config = site.config("web", &job("early"));
    let served = InProcess::start(Arc::new(Well));
    let read = {
        let config = config.clone();
        move || ConfiguredJobs::read(Some(&config))
    };
    web::keep_counting(&served.pages, Duration::from_millis(20), read).expect("a thread");
    let shows = |with: &str, without: &str| {
        wait_until(LONG, || {
            let page = served.get("/jobs").body;
            page.contains(&format!(">{with} ")) && !page.contains(&format!(">{without} "))
        })
    };
    assert!(shows("early", "late"), "{:?}", served.get("/jobs"));
    site.config("web", &job("late"));
    assert!(shows("late", "early"), "{:?}", served.get("/jobs"));
    // One that cannot be read changes nothing. It is whole at each moment.
    let broken = config.with_extension("new");
    fs::write(&broken, "[store\n").expect("a file");
    fs::rename(&broken, &config).expect("a file");
    assert!(ConfiguredJobs::read(Some(&config)).is_err());
    let is_gone = || !served.get("/jobs").body.contains(">late ");
    assert!(!wait_until(Duration::from_millis(300), is_gone));
    // A mistake in a job's section: none is judged.
    site.config("web", &format!("{}[jobs.other]\nevery = \"1h\"\n", job("late")));
    let is_told = || served.get("/jobs").body.contains("This host runs no job");
    assert!(wait_until(LONG, is_told), "{:?}", served.get("/jobs"));
    served.end();
}

/// The pages of a site with a job on record, whose configuration is then this.
fn pages_of(site: &Site<crate::support::site::Files>, config: &Path, more: &str) -> [String; 2] {
    let text = fs::read_to_string(config).expect("a file");
    fs::write(config, text + more).expect("a file");
    let served = Served::start(config, &[]);
    let pages = ["/", "/jobs"].map(|path| served.page(path));
    drop(served);
    site.config("web", &job("nightly"));
    pages
}

#[test]
fn where_a_jobs_section_is_wrong_no_job_is_told_to_be_removed() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("web", &job("nightly"));
    assert!(run(&config, &["jobs", "run", "nightly", "--force"]).status.success());
    let [front, jobs] = pages_of(&site, &config, "[jobs.other]\nevery = \"1h\"\n");
    let wrong = "this host runs no job: ";
    assert!(front.contains(wrong) && front.contains("jobs.other"), "{front}");
    assert!(front.contains("attention") && !front.contains("none in the configuration"), "{front}");
    assert!(jobs.contains("This host runs no job") && jobs.contains("jobs.other"), "{jobs}");
    assert!(jobs.contains(">nightly ") && !jobs.contains(REMOVE), "{jobs}");
    assert!(!jobs.contains("</span> ghost</span>"), "{jobs}");
    // The page says of a job that is not there any more that it is a ghost.
    let config = site.config("web", &job("other"));
    let [front, jobs] = pages_of(&site, &config, "");
    assert!(!front.contains(wrong), "{front}");
    assert!(jobs.contains(REMOVE) && jobs.contains("</span> ghost</span>"), "{jobs}");
}
