//! Certificates and the log level, taken into use anew while the process runs.
//!
//! **Invariant:** everything new is read and checked before anything old is let go. What is broken
//! is refused whole, with its reason, and everything stays as it was.

use crate::config::{Role, Sources, differences, load};
use crate::telemetry;
use lockmesh_agent::reload::Outcome;
use lockmesh_net::{Identity, IdentityFiles};
use std::time::SystemTime;

/// What a role was told, and where to look again.
#[derive(Debug)]
pub struct Reloadable<T> {
    sources: Sources,
    config: T,
    identity: Identity,
}

impl<T: Role> Reloadable<T> {
    /// What is in use now.
    pub fn new(sources: Sources, config: T, identity: Identity) -> Self {
        Self { sources, config, identity }
    }

    /// The configuration in use.
    pub fn config(&self) -> &T {
        &self.config
    }

    /// Reads everything again. A good certificate that is another one than before goes to
    /// `replace`.
    ///
    /// # Errors
    /// What is read anew is broken. Everything stays as it was, and the error says what to put
    /// right.
    pub fn reload(&mut self, replace: impl FnOnce(&Identity)) -> Outcome {
        let config: T = load(&self.sources).map_err(|error| error.to_string())?;
        let mut changes = Vec::new();
        let fresh = fresh_identity(&self.identity, &config.tls().files())?;
        // The last that can be refused: from here on everything is taken.
        telemetry::replace_level(config.log()).map_err(|error| error.to_string())?;
        if let Some(identity) = fresh {
            replace(&identity);
            changes.push(told(&identity));
            self.identity = identity;
        }
        changes
            .extend(differences(&self.config, &config).iter().filter_map(|key| self.said_of(key, &config)));
        // The keys that a start alone looks at stay as they were, so that they are named again next
        // time.
        self.config.take_reloadable(&config);
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
            // Told with the certificate, if another one lies there.
            key if key.starts_with("tls.") => None,
            key => Some(format!("{key} has changed, which takes a restart")),
        }
    }
}

/// The identity in these files, if it is good and another one than that in use.
///
/// # Errors
/// The files cannot be used, or are the certificate of somebody else. The identity in use stays.
pub fn fresh_identity(in_use: &Identity, files: &IdentityFiles) -> Result<Option<Identity>, String> {
    let fresh = Identity::load(files).map_err(|error| error.to_string())?;
    // This process is registered, and known to others, as who it was when it started.
    if fresh.peer() != in_use.peer() {
        let (path, new, old) = (files.certificate.display(), fresh.peer(), in_use.peer());
        return Err(format!("{path} is the certificate of {new}, but this process is {old}"));
    }
    Ok((!fresh.is_same_as(in_use)).then_some(fresh))
}

/// The changes, or that there are none.
pub fn or_nothing(changes: Vec<String>) -> Vec<String> {
    if changes.is_empty() { vec!["nothing has changed".into()] } else { changes }
}

/// What is said of a certificate that was taken into use.
pub fn told(identity: &Identity) -> String {
    let now = SystemTime::now();
    // The authority behind a certificate may end before it.
    let least = identity.lives().iter().min_by_key(|life| life.seconds_left(now));
    let (own, left) = (identity.lives().first(), least.map_or(0, |life| life.seconds_left(now)));
    let path = own.map(|life| life.path.display().to_string()).unwrap_or_default();
    format!("the certificate {path} is in use for new connections, good for {} more days", left / 86_400)
}
