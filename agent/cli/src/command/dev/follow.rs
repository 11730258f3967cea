//! The failover of the locks of a killed node, computed from successive lists of locks. Pure: the
//! time and the lists are arguments.

use lockmesh_client::shape::lockmesh::{Lock, Loss};
use lockmesh_client::shape::session::Session;
use serde::Serialize;
use std::time::Duration;

/// The locks that sessions of one node held.
#[derive(Clone, Debug, Default)]
pub(super) struct Follow {
    locks: Vec<Followed>,
}

/// The failover of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Followed {
    /// The key.
    pub(super) key: String,
    /// The session that held it.
    pub(super) session: String,
    /// The name of that session.
    pub(super) session_name: String,
    /// The fencing token of its hold.
    pub(super) fence: u64,
    /// Milliseconds from the kill until the session was first seen without the lock.
    pub(super) freed_after_ms: Option<u64>,
    /// The first holder after it.
    pub(super) next: Option<Next>,
    /// The cause in the history of losses; `released` if that has none, and empty while the session
    /// holds the lock.
    pub(super) cause: String,
    /// The lock-delay as a Go duration, and the number of waiters.
    #[serde(skip)]
    closed: (String, u64),
}

/// The next holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Next {
    /// The holder's session.
    pub(super) session: String,
    /// The name of that session.
    pub(super) session_name: String,
    /// Its node.
    pub(super) node: String,
    /// The fencing token.
    pub(super) fence: u64,
    /// Milliseconds from the kill until it was first seen.
    pub(super) after_ms: u64,
}

impl Follow {
    /// The locks that sessions of this node hold.
    pub(super) fn of_node(locks: &[Lock], node: &str) -> Self {
        let held = locks.iter().filter(|lock| lock.node == node && !lock.session.is_empty());
        let followed = held.map(|lock| Followed {
            key: lock.key.clone(),
            session: lock.session.clone(),
            session_name: lock.session_name.clone(),
            fence: lock.fence,
            ..Followed::default()
        });
        Self { locks: followed.collect() }
    }

    /// The locks with their failover so far.
    pub(super) fn locks(&self) -> &[Followed] {
        &self.locks
    }

    /// Adds a list of all locks, taken this long after the kill; returns a line for each change.
    pub(super) fn look(&mut self, after: Duration, locks: &[Lock]) -> Vec<String> {
        let changed =
            self.locks.iter_mut().filter(|followed| !followed.is_settled()).filter_map(|followed| {
                let now = locks.iter().find(|lock| lock.key == followed.key);
                followed.look(after, now)
            });
        changed.collect()
    }

    /// `true` if each lock has another holder, or is free without waiters.
    pub(super) fn is_settled(&self) -> bool {
        self.locks.iter().all(Followed::is_settled)
    }

    /// Adds the cause to each lock that was freed.
    pub(super) fn explain(&mut self, losses: &[Loss]) {
        for followed in self.locks.iter_mut().filter(|followed| followed.freed_after_ms.is_some()) {
            let loss = losses.iter().find(|loss| loss.session == followed.session);
            followed.cause = loss.map_or_else(|| "released".into(), Loss::in_words);
        }
    }
}

impl Followed {
    /// `true` if it has another holder, or is free without waiters.
    pub(super) fn is_settled(&self) -> bool {
        let (_, waiting) = self.closed;
        self.next.is_some() || (self.freed_after_ms.is_some() && waiting == 0)
    }

    fn look(&mut self, after: Duration, now: Option<&Lock>) -> Option<String> {
        let free = Lock::default();
        let now = now.unwrap_or(&free);
        if now.session == self.session {
            return None;
        }
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let was_freed = self.freed_after_ms.replace(self.freed_after_ms.unwrap_or(after_ms)).is_some();
        self.closed = (now.lock_delay.clone(), now.waiters);
        if !now.session.is_empty() {
            let (session_name, node, fence) = (now.session_name.clone(), now.node.clone(), now.fence);
            let holder = if session_name.is_empty() { &now.session } else { &session_name };
            let line = format!("{}: held by {holder} on {node}, fence {fence}", self.key);
            self.next = Some(Next { session: now.session.clone(), session_name, node, fence, after_ms });
            return Some(line);
        }
        // The rest of a lock-delay gets shorter with every look, and is no news.
        (!was_freed).then(|| format!("{}: free{}", self.key, self.in_the_way()))
    }

    /// The reason why a free lock has no holder.
    fn in_the_way(&self) -> String {
        let (delay, waiting) = &self.closed;
        let delay = (!delay.is_empty()).then(|| format!("closed by its lock-delay for {delay}"));
        let waiting = (*waiting > 0).then(|| format!("{waiting} waiting"));
        let words: Vec<String> = delay.into_iter().chain(waiting).collect();
        if words.is_empty() { String::new() } else { format!(", {}", words.join(", ")) }
    }

    /// The reason why the lock has no other holder yet. `session` is the session of the former
    /// holder, if it exists.
    pub(super) fn why_not(&self, session: Option<&Session>) -> String {
        let (key, id) = (&self.key, &self.session);
        if self.freed_after_ms.is_some() {
            return format!("{key} is free{}", self.in_the_way());
        }
        let reason = match session {
            None => "which ended just now".into(),
            Some(Session { ttl, .. }) if !ttl.is_empty() => {
                format!("which has a TTL of {ttl}: that must run out first, and may take twice as long")
            }
            Some(Session { node_checks, .. }) if !node_checks.is_empty() => format!(
                "which has no TTL: it ends when a check of its node turns critical ({}), or with `lockmesh session destroy {id}`",
                node_checks.join(", ")
            ),
            Some(_) => format!(
                "which has no TTL and depends on no check of its node: it ends with `lockmesh session destroy {id}`"
            ),
        };
        format!("{key} is held by the session {id}, {reason}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(key: &str, session: &str, node: &str) -> Lock {
        let (key, session, node) = (key.into(), session.into(), node.into());
        Lock { key, session, node, fence: 7, ..Lock::default() }
    }

    fn closed(key: &str, delay: &str, waiters: u64) -> Lock {
        Lock { key: key.into(), lock_delay: delay.into(), waiters, ..Lock::default() }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn follows_only_locks_of_node() {
        let locks = [lock("a", "s1", "n4"), lock("b", "s2", "n1"), closed("c", "15s", 0)];
        let follow = Follow::of_node(&locks, "n4");
        assert_eq!(follow.locks().iter().map(|lock| lock.key.as_str()).collect::<Vec<_>>(), ["a"]);
        assert!(!follow.is_settled() && Follow::of_node(&locks, "n9").is_settled());
    }

    #[test]
    fn contended_lock_followed_until_next_grant() {
        let mut follow = Follow::of_node(&[lock("job", "s1", "n4")], "n4");
        assert_eq!(follow.look(seconds(1), &[lock("job", "s1", "n4")]), [] as [&str; 0]);
        let lines = follow.look(seconds(10), &[closed("job", "15s", 1)]);
        assert_eq!(lines, ["job: free, closed by its lock-delay for 15s, 1 waiting"]);
        assert!(!follow.is_settled());
        assert_eq!(follow.look(seconds(11), &[closed("job", "14s", 1)]), [] as [&str; 0]);
        assert_eq!(
            follow.locks()[0].why_not(None),
            "job is free, closed by its lock-delay for 14s, 1 waiting"
        );
        let next = Lock { session_name: "worker".into(), fence: 8, ..lock("job", "s2", "n2") };
        assert_eq!(follow.look(seconds(25), &[next]), ["job: held by worker on n2, fence 8"]);
        assert!(follow.is_settled());
        let job = &follow.locks()[0];
        assert_eq!(
            (job.freed_after_ms, job.next.as_ref().map(|next| next.after_ms)),
            (Some(10_000), Some(25_000))
        );
        assert_eq!(follow.look(seconds(26), &[lock("job", "s3", "n3")]), [] as [&str; 0], "it has moved");
    }

    #[test]
    fn uncontended_lock_settles_when_free() {
        let mut follow = Follow::of_node(&[lock("a", "s1", "n4"), lock("b", "s1", "n4")], "n4");
        let lines = follow.look(seconds(3), &[closed("b", "15s", 0)]);
        assert_eq!(lines, ["a: free", "b: free, closed by its lock-delay for 15s"]);
        assert!(follow.is_settled());
    }

    #[test]
    fn cause_distinguishes_loss_from_release() {
        let mut follow = Follow::of_node(&["a", "b", "c"].map(|key| lock(key, key, "n4")), "n4");
        follow.look(seconds(3), &[lock("c", "c", "n4")]);
        let loss = Loss {
            session: "a".into(),
            cause: "check-critical".into(),
            check_id: "serfHealth".into(),
            ..Loss::default()
        };
        follow.explain(&[loss]);
        let causes: Vec<&str> = follow.locks().iter().map(|lock| lock.cause.as_str()).collect();
        assert_eq!(causes, ["check-critical (serfHealth)", "released", ""]);
    }

    #[test]
    fn held_lock_explained_by_session() {
        let followed = Followed { key: "job".into(), session: "s1".into(), ..Followed::default() };
        let with_ttl = Session { ttl: "30s".into(), ..Session::default() };
        assert!(followed.why_not(Some(&with_ttl)).contains("a TTL of 30s"));
        let with_check = Session { node_checks: vec!["serfHealth".into()], ..Session::default() };
        assert!(followed.why_not(Some(&with_check)).contains("turns critical (serfHealth)"));
        let words = followed.why_not(Some(&Session::default()));
        assert!(words.ends_with("it ends with `lockmesh session destroy s1`"), "{words}");
    }
}
