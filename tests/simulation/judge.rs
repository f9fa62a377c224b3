//! What must hold when a run is over, and again when `onedrop verify` has seen it.

use std::time::{Duration, UNIX_EPOCH};

use onedrop::directory::Destination;
use onedrop::ledger::{Audit, Proofs, Standing, Window};
use onedrop::store::Receipt;
use onedrop::store::memory::{Filters, Stored};

use crate::plan::{Kind, LEASE};
use crate::world::{MAIL, World, head};

/// The longest gap between two looks of settle at what it watches.
const LONGEST_GAP: Duration = Duration::from_secs(4 * 3600);
/// The time for which a copy that no look sees is looked for.
const OUT_OF_SIGHT: Duration = Duration::from_secs(8 * 24 * 3600);

/// How many copies are too many when a run is over, and when verify has seen it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Doubles {
    pub unsettled: usize,
    pub settled: usize,
}

/// Judges a run that is over.
pub fn judge(world: &World) -> Doubles {
    let unsettled = world.destinations().iter().map(|one| doubles(world, one)).sum();
    for destination in world.destinations() {
        bytes_are_right(world, &destination);
        if world.plan.kind == Kind::Filed && !destination.shared {
            continue;
        }
        if let Some(filters) = world.plan.server.filter(|_| !destination.shared) {
            let count = world.store.carried_out(&destination.account);
            if !(1..=filters.most()).contains(&count) {
                world.wrong(format!("carried out {count} times for {destination}"));
            }
            continue;
        }
        // What the mail program has saved beside ours is settled below.
        if world.plan.kind.is_inside() && !(world.plan.saves.is_some() && destination.shared) {
            has_one(world, &destination);
        }
    }
    filed_as_on_record(world);
    world.expunge();
    // The second look comes after the last lease. What an owner took is looked for a week.
    for wait in [LEASE * 4, LEASE * 4, LONGEST_GAP, OUT_OF_SIGHT] {
        world.scheduler.pause(wait);
        if !world.plan.sent_after.is_zero() {
            let settled = world.settle(None, &world.ledger, &world.store);
            if !settled.as_ref().is_ok_and(|tally| tally.failed == 0) {
                world.wrong(format!("settle: {settled:?}"));
            }
        }
        let tally = world.verify(None, true, &world.ledger, &world.store);
        world.tell(|| format!("verify in the end: {tally:?}"));
        match tally {
            Ok(tally) if tally.failed == 0 => {}
            other => world.wrong(format!("verify: {other:?}")),
        }
    }
    filed_as_on_record(world);
    for destination in world.destinations() {
        bytes_are_right(world, &destination);
        match on_record(world, &destination) {
            // Only the account's filters know where it lies.
            Some(receipt) if receipt.is_handed() => {}
            Some(receipt) if receipt.is_elsewhere() => nothing_is_left(world, &destination),
            None if world.plan.kind == Kind::Filed && !destination.shared => {}
            // Its owner has taken it before anything could find it: its row stays in doubt.
            None if world.has_seen("a receipt is lost") && is_taken(world, &destination) => {}
            _ => agrees(world, &destination),
        }
    }
    filters_came_to_their_end(world);
    let settled = world.destinations().iter().map(|one| doubles(world, one)).sum();
    Doubles { unsettled, settled }
}

/// Its owner has taken all that came.
fn is_taken(world: &World, destination: &Destination) -> bool {
    world.standing(destination).is_empty() && !world.taken(destination).is_empty()
}

/// Each mailbox into which a filter files has one copy, also where the server died in between.
fn filters_came_to_their_end(world: &World) {
    let Some(Filters { then_into: Some(last), .. }) = world.plan.server else { return };
    for destination in world.destinations().iter().filter(|one| !one.shared) {
        let count = world.store.copies(&destination.account, last).len();
        if count != 1 {
            world.wrong(format!("{count} copies in {last} of {}", destination.account));
        }
    }
}

fn on_record(world: &World, destination: &Destination) -> Option<Receipt> {
    let copies = world.ledger.latest_copies(100, world.clock(None).now()).expect("rows");
    let is_it = |(one, _): &(Destination, Receipt)| one.is_same_mailbox(destination);
    copies.into_iter().find(is_it).map(|(_, receipt)| receipt)
}

/// Each mailbox that is meant has its copy, or its row says that INBOX has it.
fn filed_as_on_record(world: &World) {
    let (mut in_inbox, mut is_wrong) = (world.plan.filed.contains(&"INBOX"), Vec::new());
    let meant = world.destinations().into_iter().filter(|one| one.stand_in().is_some());
    for destination in meant {
        let count = world.standing(&destination).len();
        let is_taken = !world.taken(&destination).is_empty();
        let is_right = match on_record(world, &destination) {
            Some(receipt) if receipt.is_elsewhere() => {
                in_inbox = true;
                count == 0
            }
            // Without one the ledger has lost it: verify finds the copy that its owner lets stand.
            receipt => {
                (receipt.is_some() || world.has_seen("a receipt is lost"))
                    && (count == 1 || count == 0 && is_taken)
            }
        };
        if !is_right {
            is_wrong.push(format!("{count} copies in {destination}"));
        }
    }
    let count = world.standing(&Destination::inbox("r0")).len();
    if !world.plan.filed.is_empty() && count != usize::from(in_inbox) {
        is_wrong.push(format!("{count} copies in INBOX"));
    }
    is_wrong.into_iter().for_each(|one| world.wrong(one));
}

fn doubles(world: &World, destination: &Destination) -> usize {
    let there = |one: &&Stored| !one.marked_deleted;
    world.standing(destination).iter().filter(there).count().saturating_sub(1)
}

/// One copy, counting what its owner took; or its bytes on record, of a shared one.
fn has_one(world: &World, destination: &Destination) {
    let count = world.standing(destination).len() + world.taken(destination).len();
    let is_kept = destination.shared
        && count == 0
        && world.kept().as_deref() == Some(MAIL.together.shared_copy());
    if count != 1 && !is_kept {
        world.wrong(format!("{count} copies in {destination}"));
    }
}

/// Nothing stands anywhere but what was sent, to the byte.
fn bytes_are_right(world: &World, destination: &Destination) {
    for stored in world.standing(destination).iter().chain(&world.taken(destination)) {
        let is_right = match destination.account.strip_prefix('r') {
            Some(recipient) => {
                let recipient: usize = recipient.parse().expect("a recipient's number");
                let all = if world.plan.filed.is_empty() { recipient..recipient + 1 } else { 0..3 };
                let is_its = |recipient| is_own_copy(&stored.bytes, recipient, world.plan.server);
                all.into_iter().any(is_its) && !stored.seen | stored.renamed
            }
            None => {
                let is_ours = stored.bytes == MAIL.together.shared_copy();
                let is_saved = world.plan.saves.is_some() && stored.bytes == MAIL.saved;
                (is_ours || is_saved) && stored.seen
            }
        };
        if !is_right {
            let text = String::from_utf8_lossy(&stored.bytes).into_owned();
            world.wrong(format!("wrong bytes in {destination}: {text}"));
        }
    }
}

/// The message, with the recipient's fields before it; the server adds a Received, and ends lines
/// as Postfix does.
fn is_own_copy(bytes: &[u8], recipient: usize, server: Option<Filters>) -> bool {
    if let Some(filters) = server {
        let text = String::from_utf8_lossy(bytes);
        let fields = text.strip_suffix(&*String::from_utf8_lossy(MAIL.together.shared_copy()));
        let lines: Vec<&str> = fields.map_or(vec!["none"], |fields| fields.lines().collect());
        return match lines[..] {
            [] => filters.strips,
            [first, second] => {
                first.starts_with("X-Onedrop-Copy: ") && second.starts_with("X-Onedrop-Try: ")
            }
            _ => false,
        };
    }
    let Some(fields) = bytes.strip_suffix(MAIL.together.shared_copy()) else { return false };
    let fields = String::from_utf8_lossy(fields).replace('\r', "");
    let received = fields.strip_prefix(&head(recipient).replace('\r', ""));
    received.is_some_and(|received| received.is_empty() || received.starts_with("Received: from "))
}

/// Ledger and mailbox say the same, and nothing is left to do.
fn agrees(world: &World, destination: &Destination) {
    let (standing, taken) = (world.standing(destination), world.taken(destination));
    // Outside of the promise a copy may be written after the second look.
    let is_looked_for = world.plan.kind.is_inside() || world.plan.verifies.is_empty();
    if standing.len() > 1 && is_looked_for || standing.is_empty() && taken.is_empty() {
        world.wrong(format!("{} copies in {destination} after verify", standing.len()));
    }
    let soon = world.clock(None).now();
    let all = Window { since: UNIX_EPOCH, all: true };
    let account = destination.account.as_str();
    let rows = world.ledger.copies_to_verify(&all, account, None, 100, soon).expect("rows");
    let row = rows.iter().find(|row| row.destination.is_same_mailbox(destination));
    match row.map(|row| &row.standing) {
        Some(Standing::Placed { receipt, .. }) => {
            let is_there = standing.iter().any(|stored| world.is_named(stored, receipt));
            if !is_there && taken.is_empty() {
                world.wrong(format!("{receipt} is on record and not in {destination}"));
            }
        }
        other => world.wrong(format!("{destination} is {other:?} in the end")),
    }
    nothing_is_left(world, destination);
}

fn nothing_is_left(world: &World, destination: &Destination) {
    let (soon, account) = (world.clock(None).now(), destination.account.as_str());
    // Later than every message: what still needs a look, or has a lease that is left.
    let never = Window { since: UNIX_EPOCH + Duration::from_secs(u32::MAX.into()), all: true };
    let left = world.ledger.copies_to_verify(&never, account, None, 100, soon).expect("rows");
    if let Some(left) = left.iter().find(|row| row.destination.is_same_mailbox(destination)) {
        world.wrong(format!("{destination} is left as {left:?}"));
    }
}
