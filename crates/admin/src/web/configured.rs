//! The jobs of the configuration as the pages know them: read again now and then, so that a job
//! that is added or taken out is seen without a restart. A configuration that cannot be read
//! changes nothing.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use onedrop_site::config::{Config, JobSettings, Loaded, Opens};

/// What a mistake in the sections of jobs means here.
pub const NOT_JUDGED: &str = "until that is mended the pages judge no job";

/// What the configuration says of jobs.
#[derive(Debug, Clone, Default)]
pub struct ConfiguredJobs {
    pub jobs: Vec<JobSettings>,
    /// What is wrong with their sections. Then none is known, and nothing is said against those
    /// that are on record.
    pub problem: Option<String>,
}

impl ConfiguredJobs {
    pub fn of(loaded: &Loaded) -> ConfiguredJobs {
        ConfiguredJobs {
            jobs: loaded.config.jobs.jobs.clone(),
            problem: loaded.job_problems.first().map(ToString::to_string),
        }
    }

    /// Reads the configuration again.
    ///
    /// # Errors
    /// What is wrong with it beside jobs.
    pub fn read(config: Option<&Path>) -> Result<ConfiguredJobs, String> {
        let loaded = Config::load_despite_jobs(config, Opens::Pages);
        loaded.as_ref().map(ConfiguredJobs::of).map_err(|errors| errors.first_line())
    }
}

/// The newest that are known.
#[derive(Default)]
pub struct KeptJobs {
    known: Mutex<Arc<ConfiguredJobs>>,
    /// Why they could not be read of late, which the log has.
    told: Mutex<Option<String>>,
}

impl KeptJobs {
    pub fn known(&self) -> Arc<ConfiguredJobs> {
        Arc::clone(&self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn keep(&self, jobs: ConfiguredJobs) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(jobs);
    }

    /// Keeps those that were read; the log has a mistake in them, if it is another one than before.
    /// Where they could not be read, those before stay, and the log says so once.
    pub(super) fn take(&self, read: Result<ConfiguredJobs, String>) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(jobs) => {
                if let Some(problem) = &jobs.problem
                    && self.known().problem.as_ref() != Some(problem)
                {
                    tracing::warn!("configuration: {problem}; {NOT_JUDGED}");
                }
                *told = None;
                self.keep(jobs);
            }
            Err(why) if told.as_ref() == Some(&why) => {}
            Err(why) => {
                tracing::warn!("{why}; the pages go on with the jobs that they know");
                *told = Some(why);
            }
        }
    }
}
