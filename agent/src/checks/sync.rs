//! Keeps the catalog equal to the agent's list of checks (anti-entropy).
//!
//! One task expires checks, writes changes to the catalog at once, and retries with growing pauses.
//! It also compares the whole list periodically, so that a catalog that lost a check (a restored
//! backup, a node removed by hand) gets it again.

use super::{Checks, LocalCheck};
use lockmesh_net::random::seed;
use lockmesh_protocol::backoff::Backoff;
use lockmesh_protocol::command::{Command, Deregistration, Registration};
use lockmesh_protocol::id::CheckId;
use lockmesh_protocol::log_on_change::LogOnChange;
use lockmesh_protocol::query::{Consistency, Query, Rows};
use lockmesh_protocol::record::{Check, Node};
use lockmesh_protocol::reply::Reply;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
const COMPARE_INTERVAL: Duration = Duration::from_secs(60);
/// The time that a write to the catalog may still take when the agent stops.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// The changes that one round writes to the catalog.
struct SyncRound {
    version: u64,
    changed: Vec<LocalCheck>,
    departed: Vec<CheckId>,
}

/// The task's schedule: its next comparison, its next retry, and the backoff.
struct Pace {
    compare_at: Instant,
    retry_at: Option<Instant>,
    backoff: Backoff,
    /// The reason why the catalog could not be updated.
    log: LogOnChange,
    /// `true` once the checks of an earlier process were searched for.
    adopted: bool,
}

impl Checks {
    /// Keeps the catalog equal to this list, until `shutdown` holds `true`.
    pub async fn run(self: Arc<Self>, mut shutdown: watch::Receiver<bool>) {
        let now = Instant::now();
        let mut pace = Pace {
            compare_at: now,
            retry_at: None,
            backoff: Backoff::new(RETRY_BACKOFF, seed()),
            log: LogOnChange::default(),
            adopted: false,
        };
        loop {
            // The node has left: nothing more is written.
            if *self.is_silent.lock().await {
                return;
            }
            let mut step = pin!(self.step(&mut pace));
            let wake_at = tokio::select! {
                wake_at = &mut step => wake_at,
                () = closed(&mut shutdown) => {
                    // A write under way gets time to finish. Without a registration it cannot, so
                    // it gets none.
                    let grace = if self.upstream.is_registered() { LAST_WORD_TIMEOUT } else { Duration::ZERO };
                    let _ = tokio::time::timeout(grace, step).await;
                    return;
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(wake_at) => {}
                () = self.changed.notified() => {}
                // No write is under way, so there is nothing to wait for.
                () = closed(&mut shutdown) => return,
            }
        }
    }

    /// Performs the due actions, and returns when to come back.
    async fn step(&self, pace: &mut Pace) -> Instant {
        let now = Instant::now();
        self.table().expire(now, self.limits.update_interval);
        // Reports wake this task too, and must not speed up retries.
        if pace.retry_at.is_none_or(|at| at <= now) {
            match self.tell_and_compare(pace, now).await {
                Ok(()) => {
                    pace.retry_at = None;
                    pace.backoff.reset();
                    if pace.log.reset() {
                        tracing::info!("this agent's checks are in the catalog again");
                    }
                }
                Err(error) => {
                    crate::metrics::CHECK_SYNCS.with_label_values(&["failed"]).inc();
                    // A repeated failure is logged once, not at every attempt.
                    if pace.log.is_new(&error) {
                        tracing::warn!(%error, "cannot write this agent's checks to the catalog; retrying");
                    }
                    pace.retry_at = Some(Instant::now() + pace.backoff.next_pause());
                }
            }
        }
        let next = self.table().next_deadline().map_or(pace.compare_at, |at| at.min(pace.compare_at));
        // While the catalog cannot be updated, only expiries need an earlier wake-up.
        match pace.retry_at {
            Some(retry) => self.table().next_expiry().map_or(retry, |at| at.min(retry)),
            None => next,
        }
    }

    async fn tell_and_compare(&self, pace: &mut Pace, now: Instant) -> Result<(), String> {
        // Held until all of it is written: [`Checks::silence`] waits for that.
        let is_silent = self.is_silent.lock().await;
        if *is_silent {
            return Ok(());
        }
        // Known changes do not wait for the whole list.
        self.tell(now).await?;
        if pace.compare_at <= now {
            self.compare(&mut pace.adopted).await?;
            // Changes found by the comparison are written in the same round.
            self.tell(Instant::now()).await?;
            pace.compare_at = Instant::now() + COMPARE_INTERVAL;
        }
        Ok(())
    }

    /// Writes changes to the catalog.
    async fn tell(&self, now: Instant) -> Result<(), String> {
        let round = self.due(now);
        for id in &round.departed {
            self.tell_departed(id).await?;
        }
        if !round.changed.is_empty() {
            let checks = round.changed.iter().map(|check| check.record.clone()).collect();
            let registration =
                Registration { node: self.own_node(), skip_node_update: true, service: None, checks };
            self.propose(Command::Register(registration)).await?;
            self.note_told(&round.changed);
        }
        self.told.send_if_modified(|told| {
            let news = *told < round.version;
            *told = (*told).max(round.version);
            news
        });
        Ok(())
    }

    fn due(&self, now: Instant) -> SyncRound {
        let table = self.table();
        let due = |check: &&LocalCheck| check.tell_at.is_some_and(|at| at <= now);
        SyncRound {
            version: table.version,
            changed: table.checks.values().filter(due).cloned().collect(),
            departed: table.departed.iter().cloned().collect(),
        }
    }

    async fn tell_departed(&self, id: &CheckId) -> Result<(), String> {
        let node = self.identity.node.clone();
        let deregistration = Deregistration { node, service: None, check: Some(id.clone()) };
        self.propose(Command::Deregister(deregistration)).await?;
        let mut table = self.table();
        table.departed.remove(id);
        // Registered again while its removal was written: it has to be written again.
        if let Some(check) = table.checks.get_mut(id) {
            check.tell_at = Some(Instant::now());
        }
        Ok(())
    }

    async fn propose(&self, command: Command) -> Result<(), String> {
        let applied = self.upstream.propose(command).await.map_err(|error| error.to_string())?;
        match applied.reply {
            Reply::Refused(refusal) => Err(refusal.to_string()),
            _ => {
                crate::metrics::CHECK_SYNCS.with_label_values(&["ok"]).inc();
                Ok(())
            }
        }
    }

    fn note_told(&self, checks: &[LocalCheck]) {
        let mut table = self.table();
        for known in checks {
            // A check that changed during the write has to be written again.
            let same = table.checks.get_mut(&known.record.id).filter(|now| now.version == known.version);
            if let Some(check) = same {
                check.tell_at = None;
            }
        }
    }

    /// Marks every check that differs from the catalog; the first comparison also adopts the checks
    /// left there.
    async fn compare(&self, adopted: &mut bool) -> Result<(), String> {
        // Changes made while the catalog answers are newer than its answer.
        let before = self.table().version;
        let query = Query::NodeChecks(self.identity.node.clone());
        let answer = self.upstream.read(query, Consistency::Default, None).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let Rows::Checks(known) = &answer.rows else {
            return Err("the server answered with no checks".into());
        };
        let now = Instant::now();
        let mut table = self.table();
        // Once: a check that appears there later, or was removed here, is not left from before.
        if !*adopted {
            known.iter().for_each(|left| self.adopt(&mut table, left, now));
            *adopted = true;
        }
        let known: BTreeMap<&CheckId, &Arc<Check>> = known.iter().map(|check| (&check.id, check)).collect();
        for (id, check) in &mut table.checks {
            let differs = known.get(id).is_none_or(|known| known.status != check.record.status);
            if differs && check.version <= before && check.tell_at.is_none() {
                check.tell_at = Some(now);
            }
        }
        Ok(())
    }

    /// Returns this agent's node, for a catalog that lacks it.
    fn own_node(&self) -> Node {
        Node {
            datacenter: self.identity.datacenter.clone(),
            ..Node::of(
                self.identity.node.clone(),
                self.identity.node_id.clone(),
                &self.identity.advertise.ip().to_string(),
            )
        }
    }
}

/// Waits until `shutdown` holds `true` or its sender is dropped.
async fn closed(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|closing| *closing).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::CheckLimits;
    use crate::node::Identity;
    use crate::own_address::OwnAddress;
    use crate::upstream::{BoxFuture, Quorum, Upstream};
    use lockmesh_agent_core::quorum_client::{Answered, LocalCall};
    use lockmesh_protocol::rpc::{Response, Unavailable};
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    /// A quorum that does not reply, and counts its calls.
    #[derive(Debug)]
    struct Silent(Semaphore);

    impl Quorum for Silent {
        fn call(self: Arc<Self>, _call: LocalCall) -> BoxFuture<Result<Answered, Unavailable>> {
            self.0.add_permits(1);
            Box::pin(std::future::pending())
        }

        fn invite(self: Arc<Self>, _: String, _: Vec<String>) -> BoxFuture<Result<Response, Unavailable>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_stops_does_not_wait_for_servers_that_say_nothing() {
        let silent = Arc::new(Silent(Semaphore::new(0)));
        let identity = Identity {
            node: "node-one".into(),
            node_id: String::new(),
            datacenter: "dc1".into(),
            version: String::new(),
            advertise: OwnAddress::fixed([127, 0, 0, 1].into()),
            server_rpc: None,
        };
        let checks = Checks::new(Upstream::new(silent.clone()), identity, CheckLimits::default());
        let (stop, stopping) = watch::channel(false);
        let running = tokio::spawn(checks.run(stopping));
        silent.0.acquire().await.expect("the catalog is compared first").forget();
        let begun = Instant::now();
        stop.send_replace(true);
        running.await.expect("no panic");
        assert!(begun.elapsed() <= LAST_WORD_TIMEOUT, "{:?}", begun.elapsed());
    }
}
