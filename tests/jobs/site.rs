//! A ledger with jobs, and what is on record of them.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use onedrop::jobs::KeptEnds;
use onedrop::ledger::sqlite::SqliteLedger;
use onedrop::ledger::{AnyLedger, JobChange, JobOutcome, JobRow, JobRun, RandomValue};
use onedrop::lock_name::LockName;
use onedrop::service::ONE;

use crate::place::{End, Held, Place, SOON, ended};
use crate::support::postgres::Postgres;
use crate::support::{onedrop, onedrop_path, wait_until};

pub struct JobSite {
    pub place: Place,
    postgres: Option<Postgres>,
}

impl JobSite {
    /// With the ledger in a file.
    pub fn new(jobs: &str) -> JobSite {
        JobSite { place: Place::with(jobs), postgres: None }
    }

    pub fn with_postgres(jobs: &str) -> JobSite {
        JobSite::on(Postgres::shared_and_empty(), jobs)
    }

    /// With a server of its own, which may be stopped.
    pub fn with_own_postgres(jobs: &str) -> JobSite {
        JobSite::on(Postgres::start(), jobs)
    }

    fn on(postgres: Postgres, jobs: &str) -> JobSite {
        let place = Place::with(&format!("{}{jobs}", postgres.toml()));
        JobSite { place, postgres: Some(postgres) }
    }

    pub fn postgres(&mut self) -> &mut Postgres {
        self.postgres.as_mut().expect("a site with Postgres")
    }

    /// Other jobs from now on.
    pub fn set_jobs(&self, jobs: &str) {
        self.place.site.config("etc", jobs);
    }

    /// `onedrop jobs ARGS`, in the site's folder.
    pub fn jobs(&self, args: &[&str]) -> Command {
        let mut command = onedrop();
        command.arg("--config").arg(&self.place.config).arg("jobs").args(args);
        self.prepared(command)
    }

    pub fn prepared(&self, mut command: Command) -> Command {
        use std::process::Stdio;
        command.current_dir(&*self.place.site.root).env_remove("MAIL_CONFIG");
        command.env("ONEDROP", onedrop_path()).stdin(Stdio::null());
        command.env("ONEDROP__JOBS__STATE_DIR", self.path("state"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, args: &[&str]) -> End {
        ended(&mut self.jobs(&[&["run"], args].concat()))
    }

    pub fn tick(&self) -> End {
        ended(&mut self.jobs(&["tick"]))
    }

    pub fn started(&self, args: &[&str]) -> Held {
        Held { child: self.jobs(args).spawn().expect("binary") }
    }

    pub fn ledger(&self) -> Arc<dyn AnyLedger> {
        match &self.postgres {
            None => Arc::new(SqliteLedger::new(self.place.path("ledger.db"), ONE)),
            Some(postgres) => Arc::new(postgres.ledger(ONE)),
        }
    }

    /// What is on record of a job, the oldest first.
    pub fn runs(&self, job: &str) -> Vec<JobRun> {
        let mut runs = self.ledger().job_runs(job, 1000, soon()).expect("runs");
        runs.reverse();
        runs
    }

    pub fn outcomes(&self, job: &str) -> Vec<Option<JobOutcome>> {
        self.runs(job).iter().map(|run| run.outcome).collect()
    }

    /// The only run on record.
    #[track_caller]
    pub fn only_run(&self, job: &str) -> JobRun {
        let runs = self.runs(job);
        let [run] = &runs[..] else { panic!("{runs:#?}") };
        run.clone()
    }

    #[track_caller]
    pub fn row(&self, job: &str) -> JobRow {
        self.row_if_any(job).unwrap_or_else(|| panic!("{job} is not on record"))
    }

    pub fn row_if_any(&self, job: &str) -> Option<JobRow> {
        let rows = self.ledger().jobs(soon()).expect("jobs").jobs;
        rows.into_iter().find(|row| row.name == job)
    }

    pub fn is_running(&self, job: &str) -> bool {
        self.row_if_any(job).is_some_and(|row| row.open.is_some())
    }

    /// Changes what is on record of a job, as time would: again where a run changed it meanwhile.
    #[track_caller]
    pub fn change(&self, job: &str, change: impl Fn(&mut JobRow)) {
        let is_changed = || {
            let mut row = self.row(job);
            let seen = Some(row.revision);
            change(&mut row);
            let value = RandomValue::default();
            let change = JobChange { seen, value, row: &row, added: &[], ended: None };
            self.ledger().change_job(&change, soon()).expect("a change")
        };
        assert!(wait_until(SOON, is_changed), "the row of {job} never stands still");
    }

    /// What failed is to be tried again now, as after its wait.
    pub fn wait_is_over(&self, job: &str) {
        self.change(job, |row| row.retry_at = row.retry_at.map(|_| SystemTime::UNIX_EPOCH));
    }

    /// Makes the lock of its open run found free that many seconds earlier.
    #[track_caller]
    pub fn found_free_earlier(&self, job: &str, secs: u64) {
        self.change(job, |row| {
            let found = row.unheld_at.expect("a tick has found it");
            row.unheld_at = Some(found - Duration::from_secs(secs));
        });
    }

    /// Lets the leases run out, unrenewed.
    pub fn expire_locks(&self) {
        let sql = "UPDATE onedrop_lock_lease SET lease_until = lease_until - ";
        match &self.postgres {
            None => {
                let ledger = self.place.site.sqlite();
                ledger.busy_timeout(SOON).expect("a time-out");
                ledger.execute(&format!("{sql} 1e9"), []).expect("SQL");
            }
            Some(postgres) => drop(postgres.psql(&format!("{sql} interval '1 hour'"))),
        }
    }

    /// Runs SQL beside the program.
    pub fn sql(&self, sql: &str) {
        match &self.postgres {
            None => drop(self.place.site.sqlite().execute(sql, []).expect("SQL")),
            Some(postgres) => drop(postgres.psql(sql)),
        }
    }

    /// The ends of runs that the ledger does not have yet.
    pub fn ends(&self) -> KeptEnds {
        KeptEnds::new(&self.path("state"))
    }

    pub fn has_ends(&self) -> bool {
        std::fs::read_dir(self.path("state")).is_ok_and(|mut files| files.next().is_some())
    }

    pub fn is_locked(&self, job: &str) -> bool {
        let name: LockName = format!("jobs/{job}").parse().expect("a name");
        let rows = self.ledger().lock_rows(Some(&name), soon()).expect("rows");
        rows.iter().any(|row| row.left.is_some())
    }

    pub fn lines(&self, file: &str) -> Vec<String> {
        self.place.text(file).lines().map(str::to_owned).collect()
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.place.path(name)
    }

    pub fn touch(&self, name: &str) {
        std::fs::write(self.path(name), "").expect("a file");
    }
}

/// A job that a shell runs, as TOML. `keys` are further lines.
pub fn job(name: &str, script: &str, keys: &str) -> String {
    let schedule = match keys.contains("schedule =") || keys.contains("every =") {
        true => "",
        false => "every = \"1h\"\n",
    };
    format!("[jobs.{name}]\ncommand = [\"sh\", \"-c\", '''{script}''']\n{schedule}{keys}\n")
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub fn exists(path: &Path) -> bool {
    wait_until(SOON, || path.exists())
}
