//! Access control as this agent takes part in it: the cluster's settings, the last known rights of
//! callers, and the agent's own tokens.
//!
//! The servers judge what they execute. The agent judges only the endpoints that it answers from
//! its own memory, by the rights that a server reports for the caller. The rights of the last
//! [`MAX_CALLERS`] callers are remembered, and used while no server answers (Consul's down policy
//! `extend-cache`). Without a server, a caller that is not remembered is refused.
//!
//! | file | is |
//! |---|---|
//! | `mod.rs` | the settings and the rights of callers |
//! | `peers.rs` | the users of this host as callers |
//! | `tokens.rs` | the agent's own tokens, and their file |

mod peers;
mod tokens;

use peers::Peers;
pub(crate) use tokens::caller;
pub use tokens::{AgentTokens, TokenFileError};

use crate::node::write_durably;
use crate::upstream::Upstream;
use crate::upstream::calls::Read;
use lockmesh_protocol::acl::{AclMode, AclSettings, Caller, DefaultPolicy, Rights};
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Blocking, Consistency, Query, Rows};
use lockmesh_protocol::rpc::Unavailable;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The maximum number of callers whose rights are remembered: some MiB with large policies.
pub const MAX_CALLERS: usize = 1_024;

/// The file that exists while requests are judged.
const FILE: &str = "acl-enforced";

/// The timeout of a read of rights, before the remembered ones are used.
const RIGHTS_TIMEOUT: Duration = Duration::from_secs(1);

/// The wait of a read of the settings.
const SETTINGS_WAIT: Duration = Duration::from_secs(300);

/// The pause after a failed read of the settings.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The same, if the server is of a build without access control.
const OLD_SERVER_PAUSE: Duration = Duration::from_secs(30);

/// The access control of an agent.
#[derive(Debug)]
pub struct Acl {
    settings: watch::Sender<AclSettings>,
    /// Set once a server has answered.
    is_known: Arc<AtomicBool>,
    known: Mutex<KnownRights>,
    /// The agent's own tokens.
    pub(crate) tokens: AgentTokens,
    /// The users of this host.
    pub(crate) peers: Peers,
    /// Follows the settings.
    task: AbortHandle,
}

impl Drop for Acl {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The rights of the last callers.
#[derive(Debug, Default)]
struct KnownRights {
    rights: BTreeMap<Caller, (u64, Arc<Rights>)>,
    /// The number of uses so far.
    uses: u64,
}

impl Acl {
    /// Begins to follow the settings of the cluster; must be called within a runtime. Until a
    /// server has answered, the mode counts that an earlier process has left in `folder`: a restart
    /// without servers opens nothing.
    pub fn start(upstream: &Upstream, tokens: AgentTokens, folder: Option<&Path>) -> Arc<Self> {
        let file = folder.map(|folder| folder.join(FILE));
        let was_enforced = file.as_ref().is_some_and(|file| file.exists());
        let mode = if was_enforced { AclMode::Enforce } else { AclMode::Off };
        let settings = watch::Sender::new(AclSettings { mode, ..AclSettings::default() });
        let upstream = upstream.for_caller(Caller::Agent);
        let is_known = Arc::new(AtomicBool::new(false));
        let following = tokio::spawn(follow(settings.clone(), Arc::clone(&is_known), upstream, file));
        let task = following.abort_handle();
        Arc::new(Self { settings, is_known, known: Mutex::default(), tokens, peers: Peers::default(), task })
    }

    /// Returns the settings of the cluster.
    pub fn settings(&self) -> AclSettings {
        self.settings.borrow().clone()
    }

    /// Returns the settings of the cluster, now and from now on.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> watch::Receiver<AclSettings> {
        self.settings.subscribe()
    }

    /// Records settings that this agent has changed, before the servers report them.
    pub(crate) fn note(&self, settings: AclSettings) {
        self.settings.send_replace(settings);
    }

    /// Returns `true` once a server has reported the settings.
    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Returns `true` while there is no access control.
    pub fn is_off(&self) -> bool {
        self.settings.borrow().mode == AclMode::Off
    }

    /// Returns the reaction to requests for which there is no rule.
    pub fn default_policy(&self) -> DefaultPolicy {
        let settings = self.settings.borrow();
        if settings.mode == AclMode::Enforce { settings.default_policy } else { DefaultPolicy::Allow }
    }

    /// Returns the rights of a caller; `None` if requests are not judged. The caller is that of
    /// `upstream`.
    ///
    /// # Errors
    /// The caller's token is unknown; or no server answers, and the rights are not remembered.
    pub async fn rights(
        &self,
        upstream: &Upstream,
        caller: &Caller,
    ) -> Result<Option<Arc<Rights>>, Unavailable> {
        if self.settings.borrow().mode != AclMode::Enforce {
            return Ok(None);
        }
        let known = self.known().used(caller);
        // Without a server, each request would wait in vain.
        if let Some(known) = &known
            && !upstream.not_ready().is_empty()
        {
            return Ok(Some(Arc::clone(known)));
        }
        let read = Read { query: Query::Rights, consistency: Consistency::Stale, blocking: None };
        let silent = || Err(Unavailable::NotLeader { leader: None });
        let answer = tokio::time::timeout(RIGHTS_TIMEOUT, upstream.call(read)).await;
        match answer.unwrap_or_else(|_| silent()).map(|answer| answer.rows.clone()) {
            Ok(Rows::Rights(Some(rights))) => {
                self.known().remember(caller.clone(), Arc::clone(&rights));
                Ok(Some(rights))
            }
            Ok(Rows::Rights(None)) => Ok(None),
            Err(refused @ Unavailable::NoAccess(_)) => {
                self.known().rights.remove(caller);
                Err(refused)
            }
            Err(reason) => known.map(Some).ok_or(reason),
            Ok(_) => known.map(Some).ok_or(Unavailable::NotLeader { leader: None }),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, KnownRights> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownRights {
    fn used(&mut self, caller: &Caller) -> Option<Arc<Rights>> {
        self.uses += 1;
        let (last_use, rights) = self.rights.get_mut(caller)?;
        *last_use = self.uses;
        Some(Arc::clone(rights))
    }

    /// Remembers the rights of a caller instead of those of the least recently used one.
    fn remember(&mut self, caller: Caller, rights: Arc<Rights>) {
        self.uses += 1;
        self.rights.insert(caller, (self.uses, rights));
        if self.rights.len() > MAX_CALLERS {
            let oldest = self.rights.iter().min_by_key(|(_, (last_use, _))| *last_use);
            if let Some(oldest) = oldest.map(|(caller, _)| caller.clone()) {
                self.rights.remove(&oldest);
            }
        }
    }
}

/// Leaves a file for the next process while requests are judged.
fn remember(file: &Path, settings: &AclSettings) {
    let is_enforced = settings.mode == AclMode::Enforce;
    let done = match (is_enforced, file.exists()) {
        (true, false) => write_durably(file, "access control is enforced\n"),
        (false, true) => std::fs::remove_file(file),
        _ => Ok(()),
    };
    if let Err(error) = done {
        tracing::warn!(?file, %error, "access control mode not remembered");
    }
}

/// Follows the settings, and remembers them in a file.
async fn follow(
    settings: watch::Sender<AclSettings>,
    is_known: Arc<AtomicBool>,
    upstream: Upstream,
    file: Option<PathBuf>,
) {
    let mut index = None;
    loop {
        let blocking = index.map(|index| Blocking { index, wait: SETTINGS_WAIT });
        let read = Read { query: Query::AclSettings, consistency: Consistency::Stale, blocking };
        let answer = upstream.call(read).await;
        let (new, pause) = match &answer {
            Ok(answer) => match &answer.rows {
                Rows::AclSettings(new) => {
                    // Index 0 would not wait.
                    index = Some(answer.index.max(LogIndex(1)));
                    (Some(new.clone()), None)
                }
                _ => (Some(AclSettings::default()), Some(OLD_SERVER_PAUSE)),
            },
            Err(_) => (None, Some(RETRY_PAUSE)),
        };
        if let Some(new) = new {
            if let Some(file) = &file {
                remember(file, &new);
            }
            settings.send_if_modified(|known| {
                let is_new = *known != new;
                *known = new;
                is_new
            });
        }
        is_known.fetch_or(answer.is_ok(), Ordering::Relaxed);
        if let Some(pause) = pause {
            index = None;
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_protocol::acl::{SecretHash, rights::Who};

    #[test]
    fn enforced_mode_left_for_next_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(FILE);
        let settings = |mode| AclSettings { mode, ..AclSettings::default() };
        for (mode, exists) in
            [(AclMode::Log, false), (AclMode::Enforce, true), (AclMode::Enforce, true), (AclMode::Off, false)]
        {
            remember(&file, &settings(mode));
            assert_eq!(file.exists(), exists, "{mode:?}");
        }
    }

    fn rights() -> Arc<Rights> {
        let (policies, default_policy) = (Vec::new(), DefaultPolicy::Deny);
        Arc::new(Rights { who: Who::Anonymous, policies, default_policy, key_list_policy: false })
    }

    #[test]
    fn least_recently_used_rights_forgotten() {
        let mut known = KnownRights::default();
        let caller = |number: usize| Caller::Token(SecretHash::of(&number.to_string()));
        (0..MAX_CALLERS).for_each(|number| known.remember(caller(number), rights()));
        assert!(known.used(&caller(0)).is_some());
        known.remember(Caller::Anonymous, rights());
        assert_eq!(known.rights.len(), MAX_CALLERS);
        assert!(known.used(&caller(0)).is_some() && known.used(&Caller::Anonymous).is_some());
        assert!(known.used(&caller(1)).is_none(), "the other ones were used later");
    }
}
