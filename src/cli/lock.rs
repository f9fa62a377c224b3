//! `onedrop lock`: who holds which lock, whether one is still ours, and making one free. Asking
//! never takes a lock.

use std::env;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant, SystemTime};

use jiff::{Timestamp, Unit};

use super::CommandOutcome;
use super::terminal::{Paint, Screen};
use onedrop_core::exit::Verdict;
use onedrop_core::ledger::{
    LedgerError, LockClaim, LockHolder, LockRow, LockTheft, LockWaiter, Locks, RandomValue,
    of_the_ledger,
};
use onedrop_core::lock_key::hex;
use onedrop_core::lock_name::{LockName, LockToken};
use onedrop_core::os::host_name;
use onedrop_core::text;
use onedrop_locks::lock;
use onedrop_site::command_line::{LockArgs, LockCommand};
use onedrop_site::service::Site;
use onedrop_site::telemetry;

/// What a question may take.
const TIME: Duration = Duration::from_secs(20);

pub(super) fn run(args: LockArgs, site: &Site, screen: Screen) -> Result<CommandOutcome, String> {
    let ledger = site.ledger().map_err(of_the_ledger)?;
    let until = Instant::now() + TIME;
    match args.command {
        LockCommand::List { stale, json } => list(&*ledger, None, (stale, json), until, screen),
        LockCommand::Holder { name, json } => {
            list(&*ledger, Some(&name), (false, json), until, screen)
        }
        LockCommand::Assert { name, min } => assert(&*ledger, name.as_deref(), min, until),
        LockCommand::Release { name, slot, epoch } => {
            release(&*ledger, &LockToken { name, slot, epoch }, until)
        }
        LockCommand::Steal { name, slot, force, note } => {
            steal(&*ledger, &name, slot, force, &note, until)
        }
    }
}

fn list(
    ledger: &dyn Locks,
    name: Option<&LockName>,
    (stale, json): (bool, bool),
    until: Instant,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let mut rows = ledger.lock_rows(name, until).map_err(of_the_ledger)?;
    // A lease that has run out keeps no process out.
    let shows_held = !stale;
    let shows_stale = name.is_none();
    rows.retain(|row| if row.left.is_some() { shows_held } else { shows_stale });
    let verdict = match name.is_some() && rows.is_empty() {
        true => Verdict::No,
        false => Verdict::Done,
    };
    // Those that wait for a lock keep it from none of the others that ask who holds it.
    let waiters = match name {
        None if shows_held => ledger.lock_waiters(None, until).map_err(of_the_ledger)?,
        _ => Vec::new(),
    };
    let now = Timestamp::now();
    let out = match json {
        true => as_json(&rows, &waiters),
        false => (rows.iter().map(|row| line(row, now, screen)))
            .chain(waiters.iter().map(|waiter| waiter_line(waiter, now, screen)))
            .collect(),
    };
    // For people: a script counts lines.
    let is_silent = out.is_empty() && !json && io::stdout().is_terminal();
    let err = match name {
        Some(name) if is_silent => format!("{name} is free"),
        None if is_silent && stale => "no lease has run out".to_owned(),
        None if is_silent => "no lock is held".to_owned(),
        _ => String::new(),
    };
    Ok(CommandOutcome { out, err, verdict })
}

fn line(row: &LockRow, now: Timestamp, screen: Screen) -> String {
    let LockRow { name, slot, epoch, holder, .. } = row;
    let left = match row.left {
        Some(left) => format!("{} s left", left.as_secs()),
        None => screen.painted("run out", Paint::Doubtful),
    };
    let rest = format!(
        " slot={slot}/{} epoch={epoch} {} since {} s, {left}{}",
        holder.slots,
        process(holder),
        secs_since(row.acquired_at, now),
        shown_note(holder)
    );
    screen.line(name.as_str(), Paint::Name, &rest, 2)
}

fn waiter_line(waiter: &LockWaiter, now: Timestamp, screen: Screen) -> String {
    let others = match waiter.others {
        0 => String::new(),
        others => format!(", {others} more of this host"),
    };
    let rest = format!(
        " waits for 1/{} {} since {} s{others}{}",
        waiter.holder.slots,
        process(&waiter.holder),
        secs_since(waiter.since, now),
        shown_note(&waiter.holder)
    );
    screen.line(waiter.name.as_str(), Paint::Name, &rest, 2)
}

fn process(holder: &LockHolder) -> String {
    format!("{}:{} {}", text::shown(&holder.host), holder.pid, text::shown(&holder.command))
}

fn shown_note(holder: &LockHolder) -> String {
    match holder.note.is_empty() {
        true => String::new(),
        false => format!("  {}", text::shown(&holder.note)),
    }
}

fn secs_since(time: SystemTime, now: Timestamp) -> i64 {
    Timestamp::try_from(time).map_or(0, |at| now.duration_since(at).as_secs().max(0))
}

/// First the slots, then those that wait.
fn as_json(rows: &[LockRow], waiters: &[LockWaiter]) -> String {
    let time = |time| {
        let rounded = Timestamp::try_from(time).and_then(|at| at.round(Unit::Second));
        rounded.map(|at| at.to_string()).unwrap_or_default()
    };
    let rows = rows.iter().map(|row| {
        serde_json::json!({
            "name": row.name.as_str(),
            "slot": row.slot,
            "slots": row.holder.slots,
            "epoch": row.epoch,
            "host": row.holder.host,
            "pid": row.holder.pid,
            "command": row.holder.command,
            "note": row.holder.note,
            "acquired_at": time(row.acquired_at),
            "lease_secs": row.lease.as_secs_f64(),
            "left_secs": row.left.map(|left| left.as_secs_f64()),
        })
    });
    let waiters = waiters.iter().map(|waiter| {
        serde_json::json!({
            "name": waiter.name.as_str(),
            "slots": waiter.holder.slots,
            "host": waiter.holder.host,
            "pid": waiter.holder.pid,
            "command": waiter.holder.command,
            "note": waiter.holder.note,
            "waits_since": time(waiter.since),
            "others": waiter.others,
        })
    });
    format!("{:#}", serde_json::Value::from_iter(rows.chain(waiters)))
}

/// A holding of a lock, as far as it is known here.
struct Holding {
    token: LockToken,
    /// ONEDROP_LOCK_OWNER: an epoch may be given out twice, where the ledger was restored.
    owner: Option<String>,
}

/// The holding that is meant: the one under which this process runs, or a token. A name may look
/// like a token of another lock, so the environment is asked first.
fn meant(name: Option<&str>) -> Result<Holding, String> {
    let own = match env::var("ONEDROP_LOCK_TOKEN") {
        Ok(own) => own.parse::<LockToken>().map_err(|why| format!("ONEDROP_LOCK_TOKEN: {why}")),
        Err(_) => Err("not run by onedrop with-lock: ONEDROP_LOCK_TOKEN is not set, and no token \
                       is given"
            .to_owned()),
    };
    let own = own.map(|token| Holding { token, owner: env::var("ONEDROP_LOCK_OWNER").ok() });
    let Some(name) = name else { return own };
    if let Ok(own) = &own
        && (name == own.token.name.as_str() || name == own.token.to_string())
    {
        return Ok(Holding { token: own.token.clone(), owner: own.owner.clone() });
    }
    match name.parse() {
        Ok(token) => Ok(Holding { token, owner: None }),
        Err(_) => Err(format!("run under the lock {}, not {}", own?.token.name, text::shown(name))),
    }
}

fn assert(
    ledger: &dyn Locks,
    name: Option<&str>,
    min: Duration,
    until: Instant,
) -> Result<CommandOutcome, String> {
    let Holding { token, owner } = meant(name)?;
    let rows = ledger.lock_rows(Some(&token.name), until).map_err(of_the_ledger)?;
    let is_own = |row: &&LockRow| {
        let is_owner = owner.as_ref().is_none_or(|owner| *owner == hex(row.owner.bytes()));
        row.slot == token.slot && row.epoch == token.epoch && is_owner
    };
    let left = rows.iter().find(is_own).and_then(|row| row.left);
    Ok(match left {
        Some(left) if left >= min => CommandOutcome::done(left.as_secs().to_string()),
        Some(left) => lost(format!("{token} lasts {} s only", left.as_secs())),
        None => lost(format!("{token} is not held any more")),
    })
}

fn lost(err: String) -> CommandOutcome {
    CommandOutcome { out: String::new(), err, verdict: Verdict::Lost }
}

fn no(err: String) -> CommandOutcome {
    CommandOutcome { out: String::new(), err, verdict: Verdict::No }
}

fn release(
    ledger: &dyn Locks,
    token: &LockToken,
    until: Instant,
) -> Result<CommandOutcome, String> {
    let rows = ledger.lock_rows(Some(&token.name), until).map_err(of_the_ledger)?;
    let own = rows.iter().find(|row| row.slot == token.slot && row.epoch == token.epoch);
    let not_held = || no(format!("{token} is not held"));
    let Some(LockRow { name, slot, epoch, owner, .. }) = own.cloned() else {
        return Ok(not_held());
    };
    let claim = LockClaim { name, slot, epoch, owner };
    Ok(match ledger.release_lock(&claim, until).map_err(of_the_ledger)? {
        true => CommandOutcome::done(format!("{token} is free")),
        false if is_as_it_was(ledger, token, until)? => no(format!(
            "{token} has an owner that is none of Onedrop's, and only onedrop lock steal {} --slot \
             {} --force frees it",
            token.name, token.slot
        )),
        false => not_held(),
    })
}

fn is_as_it_was(ledger: &dyn Locks, token: &LockToken, until: Instant) -> Result<bool, String> {
    let rows = ledger.lock_rows(Some(&token.name), until).map_err(of_the_ledger)?;
    Ok(rows.iter().any(|row| row.slot == token.slot && row.epoch == token.epoch))
}

fn steal(
    ledger: &dyn Locks,
    name: &LockName,
    slot: Option<u32>,
    force: bool,
    note: &str,
    until: Instant,
) -> Result<CommandOutcome, String> {
    let mut rows = ledger.lock_rows(Some(name), until).map_err(of_the_ledger)?;
    rows.retain(|row| slot.is_none_or(|slot| row.slot == slot));
    if force && slot.is_none() && rows.len() > 1 {
        let holders = lock::described(&rows);
        return Err(format!("several slots are held, say which with --slot: {holders}"));
    }
    let by = format!("stolen by {}:{}", host_name(), std::process::id());
    let note = match text::shown(note) {
        why if why.is_empty() => by,
        why => format!("{by}: {why}"),
    };
    let (mut out, mut err) = (String::new(), String::new());
    for row in &rows {
        let value = RandomValue::default();
        let theft = LockTheft { name, slot: row.slot, force, value, note: &note };
        match ledger.steal_lock(&theft, until) {
            Ok(Some(epoch)) => {
                let holder = lock::described(std::slice::from_ref(row));
                let text =
                    format!("{name}: stole {holder}; its epoch {} became {epoch}", row.epoch);
                telemetry::start();
                tracing::warn!("{text} ({note})");
                out.push_str(&format!("{text}\n"));
            }
            Ok(None) => {}
            Err(LedgerError::Contended) => err.push_str(&format!(
                "{name}: slot {}: another claims it, or a transaction that has asserted the lock \
                 is open; try again when that has ended\n",
                row.slot
            )),
            Err(error) => err.push_str(&format!("{name}: slot {}: ledger: {error}\n", row.slot)),
        }
    }
    if !err.is_empty() {
        return Ok(CommandOutcome { out, err, verdict: Verdict::Failed });
    }
    let held = lock::described(&rows);
    Ok(match (out.is_empty(), rows.is_empty()) {
        (false, _) => CommandOutcome::done(out),
        (true, true) => no(format!("{name} is free")),
        (true, false) => no(format!("{name} is held: {held}; --force steals it all the same")),
    })
}
