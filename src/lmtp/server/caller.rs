//! Who a client is, and for whom it may deliver. By the server's own places it may deliver for
//! everybody: the rights of the socket say who can connect. Where all users of the host may
//! (`lmtp.users`), the kernel names the user (SO_PEERCRED in unix(7)), who may deliver to its own
//! account alone, and what it says of the sender is not believed. Such clients never take the
//! places of others: one user has a few at a time, all whom this process cannot see have as many
//! together, and all users half.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use nix::unistd::{Uid, User, geteuid};

use onedrop_net::socket::Socket;

/// Clients of one user at a time. Postfix delivers two messages at once to a recipient of local(8)
/// (local_destination_concurrency_limit).
const OF_ONE_USER: usize = 5;

/// A client, as far as it matters for whom it may deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientIdentity {
    /// May deliver for everybody.
    Believed,
    /// Not believed, but that the process is this user's.
    User(Uid),
    /// A user whom this process cannot see.
    Unseen,
}

impl ClientIdentity {
    /// The user whose places it takes: `None` if it is believed; all who are unseen are one.
    pub fn counts_for(self) -> Option<CountedUser> {
        match self {
            ClientIdentity::Believed => None,
            ClientIdentity::User(user) => Some(CountedUser(Some(user))),
            ClientIdentity::Unseen => Some(CountedUser(None)),
        }
    }

    /// The client at the other end of a socket to which all users may connect.
    pub fn of(socket: &Socket, believed: &[Uid]) -> ClientIdentity {
        match socket.peer_user() {
            Some(user) if believed.contains(&user) => ClientIdentity::Believed,
            Some(user) if user != overflow_user() || sees_all_users() => ClientIdentity::User(user),
            Some(_) | None => ClientIdentity::Unseen,
        }
    }
}

/// Its name on this host.
///
/// # Errors
/// A sentence that says why it has none.
pub fn name_of(user: Uid) -> Result<String, String> {
    match User::from_uid(user) {
        Ok(Some(known)) => Ok(known.name),
        Ok(None) => Err(format!("the caller, uid {user}, is no user of this host")),
        Err(error) => Err(format!("the caller, uid {user}, cannot be looked up: {error}")),
    }
}

/// The users from whom a SASL login name is believed: our own, root, and Postfix's.
pub fn believed() -> Vec<Uid> {
    // A host without Postfix has no such user; one whose users cannot be looked up now takes no
    // other user's word.
    let postfix = User::from_name("postfix").ok().flatten();
    let believed = [geteuid(), Uid::from_raw(0)].into_iter().chain(postfix.map(|user| user.uid));
    let overflow = overflow_user();
    believed.filter(|user| *user != overflow).collect()
}

/// In a user namespace (systemd's PrivateUsers=) this stands for all users that have no number
/// there: user_namespaces(7).
fn overflow_user() -> Uid {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    Uid::from_raw(overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(65_534))
}

/// Whether all users of the host have their own numbers here.
fn sees_all_users() -> bool {
    std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_ascii_whitespace().eq(["0", "0", &u32::MAX.to_string()]))
}

/// A user, or all who are unseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CountedUser(Option<Uid>);

/// The clients that users have.
#[derive(Default)]
pub struct UserClients(Mutex<HashMap<CountedUser, usize>>);

/// A user's place among them; free when dropped.
pub struct UserSlot(Arc<UserClients>, CountedUser);

impl UserClients {
    /// A place for one more client of this user, if there is one among the `most` of all users.
    pub fn enter(self: &Arc<Self>, user: CountedUser, most: usize) -> Option<UserSlot> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = counts.values().sum();
        let own = counts.get(&user).copied().unwrap_or(0);
        if all >= most || own >= OF_ONE_USER {
            return None;
        }
        counts.insert(user, own + 1);
        Some(UserSlot(Arc::clone(self), user))
    }
}

impl Drop for UserSlot {
    fn drop(&mut self) {
        let mut counts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.1) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_has_a_few_places_and_all_users_have_their_part() {
        let (clients, most) = (Arc::new(UserClients::default()), 7);
        let entered = |client: ClientIdentity| {
            let counted = client.counts_for().expect("it is not believed");
            clients.enter(counted, most)
        };
        let enter = |user| entered(ClientIdentity::User(Uid::from_raw(user)));
        let first: Vec<_> = (0..OF_ONE_USER).map(|_| enter(1).expect("a place")).collect();
        assert!(enter(1).is_none());
        let second = [enter(2).expect("a place"), enter(3).expect("a place")];
        assert!(enter(4).is_none());
        drop(first);
        assert!(enter(1).is_some() && enter(4).is_some());
        drop(second);
        let unseen: Vec<_> = (0..OF_ONE_USER).map(|_| entered(ClientIdentity::Unseen)).collect();
        assert!(unseen.iter().all(Option::is_some));
        assert!(entered(ClientIdentity::Unseen).is_none() && enter(1).is_some());
        assert_eq!(ClientIdentity::Believed.counts_for(), None);
    }
}
