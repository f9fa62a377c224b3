//! What jobs need of this host: their programs, folders and users. A host may lack some of them,
//! and leave the jobs to others; so these are warnings.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::unistd::{User, geteuid};

use super::finding::{Finding, Severity};
use onedrop_locks::jobs::program_of;
use onedrop_site::config::JobSettings;

pub(super) fn findings(jobs: &[JobSettings]) -> Vec<Finding> {
    let enabled = jobs.iter().filter(|job| job.enabled);
    let missing = enabled.flat_map(|job| missing(job).map(|text| (&job.name, text)));
    let finding = |(name, text): (&String, String)| {
        Finding::new(Severity::Warning, "jobs", format!("{name}: {text}"))
    };
    missing.map(finding).collect()
}

fn missing(job: &JobSettings) -> impl Iterator<Item = String> {
    let program = job.command.first().filter(|program| !is_there(program, job));
    let program = program.map(|program| format!("there is no program {program} on this host"));
    let hooks = [&job.on_failure, &job.on_success, &job.on_recovery];
    let hook = hooks.into_iter().filter_map(|hook| program_of(hook)).find_map(|program| {
        let is_missing = !is_there(program, job);
        is_missing.then(|| format!("a hook of it needs {program}, which this host does not have"))
    });
    let folder = job.cwd.as_ref().filter(|folder| !folder.is_dir());
    let folder = folder.map(|folder| format!("cwd: there is no folder {}", folder.display()));
    let user = job.user.as_ref().and_then(|name| match User::from_name(name) {
        Ok(None) => Some(format!("user: there is no {name} on this host")),
        Ok(Some(user)) if user.uid != geteuid() && !geteuid().is_root() => {
            Some(format!("user: only root can run it as {name}"))
        }
        Ok(Some(_)) | Err(_) => None,
    });
    [program, folder, user, hook].into_iter().flatten()
}

/// Whether it can be run, where the job's environment looks for it.
fn is_there(program: &str, job: &JobSettings) -> bool {
    let is_program = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    // This program runs for its own name, and a relative path depends on what ticks.
    if program == "onedrop" || program.contains('/') && !program.starts_with('/') {
        return true;
    }
    if program.starts_with('/') {
        return is_program(Path::new(program));
    }
    let own = job.env.iter().rev().find(|(name, _)| name == "PATH");
    let path = own.map(|(_, path)| OsString::from(path)).or_else(|| env::var_os("PATH"));
    env::split_paths(&path.unwrap_or_default()).any(|folder| is_program(&folder.join(program)))
}
