//! Reload of certificates, of the log level, and of an agent's services, checks, metadata and rules
//! for clients in a running process.
//!
//! **Invariant:** all new settings are read and checked before any old one is replaced. An invalid
//! configuration is rejected as a whole, with the reason.

use crate::config::{Role, Sources, differences, load};
use crate::telemetry;
use lockmesh_agent::reload::{Outcome, ReloadError};
use lockmesh_net::{Identity, IdentityFiles};
use std::time::SystemTime;

/// The configuration of a role, with its sources.
#[derive(Debug)]
pub struct Reloadable<T> {
    sources: Sources,
    config: T,
    identity: Identity,
}

impl<T: Role> Reloadable<T> {
    /// The current configuration.
    pub fn new(sources: Sources, config: T, identity: Identity) -> Self {
        Self { sources, config, identity }
    }

    /// Reads all sources again. `take` gets the configuration in use and the next one; a valid
    /// certificate that differs from the current one is passed to `replace`.
    ///
    /// # Errors
    /// The new configuration is invalid, or `take` refuses it. The current one is kept; the error
    /// names the cause.
    pub fn reload(
        &mut self,
        take: impl FnOnce(&T, &T) -> Result<(), ReloadError>,
        replace: impl FnOnce(&Identity),
    ) -> Outcome {
        let config: T = load(&self.sources).map_err(ReloadError::invalid)?;
        let mut changes = Vec::new();
        let fresh = fresh_identity(&self.identity, &config.tls().files())?;
        let level = telemetry::level(config.log()).map_err(ReloadError::invalid)?;
        let mut next = self.config.clone();
        next.take_reloadable(&config);
        // The last that can be refused: from here on everything is taken.
        take(&self.config, &next)?;
        telemetry::replace_level(level);
        if let Some(identity) = fresh {
            replace(&identity);
            changes.push(certificate_change(&identity));
            self.identity = identity;
        }
        changes
            .extend(differences(&self.config, &config).iter().filter_map(|key| self.said_of(key, &config)));
        // The keys that a start alone looks at stay as they were, so that they are named again next
        // time.
        self.config = next;
        Ok(or_nothing(changes))
    }

    fn said_of(&self, key: &str, config: &T) -> Option<String> {
        match key {
            "log.level" => {
                let (old, new) = (&self.config.log().level, &config.log().level);
                let effective = telemetry::effective_level(config.log());
                Some(match effective == *new {
                    true => format!("log.level is {new:?}, was {old:?}"),
                    false => format!(
                        "log.level is {new:?}, but {} = {effective:?} counts",
                        telemetry::LEVEL_VARIABLE
                    ),
                })
            }
            "upstream.cluster_id" => Some("upstream.cluster_id is in use".into()),
            "services" | "checks" => Some(format!("the {key} of the configuration are in use")),
            key if key.starts_with("access.") => Some(format!("{key} is in use")),
            "node_meta" => Some("node_meta is in use".into()),
            // Reported with the certificate, if that has changed.
            key if key.starts_with("tls.") => None,
            key => Some(format!("{key} has changed, which takes a restart")),
        }
    }
}

/// The identity in these files, if it is valid and differs from the current one.
///
/// # Errors
/// The files cannot be used, or their certificate names another node. The current identity is kept.
pub fn fresh_identity(in_use: &Identity, files: &IdentityFiles) -> Result<Option<Identity>, ReloadError> {
    let fresh = Identity::load(files).map_err(ReloadError::invalid)?;
    // This process is registered, and known to others, as who it was when it started.
    if fresh.peer() != in_use.peer() {
        let (file, new, own) = (files.certificate.clone(), fresh.peer().clone(), in_use.peer().clone());
        return Err(ReloadError::OtherPeer { file, new, own });
    }
    Ok((!fresh.is_same_as(in_use)).then_some(fresh))
}

/// The changes, or a message that there are none.
pub fn or_nothing(changes: Vec<String>) -> Vec<String> {
    if changes.is_empty() { vec!["no changes".into()] } else { changes }
}

/// The message for a replaced certificate.
pub fn certificate_change(identity: &Identity) -> String {
    let now = SystemTime::now();
    // The authority behind a certificate may end before it.
    let least = identity.lives().iter().min_by_key(|life| life.seconds_left(now));
    let (own, left) = (identity.lives().first(), least.map_or(0, |life| life.seconds_left(now)));
    let path = own.map(|life| life.path.display().to_string()).unwrap_or_default();
    format!("the certificate {path} is in use for new connections, good for {} more days", left / 86_400)
}
