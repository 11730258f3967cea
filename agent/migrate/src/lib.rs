//! The move from Consul: keys of a running cluster, and configuration files of its agents.
//!
//! The command line has the options and prints; everything about Consul's data is decided here.
//! The features of Consul that Lockmesh does not have are listed in `agent/src/consul`, because the
//! agent's router answers with them.
//!
//! | module | contents |
//! |---|---|
//! | `kv/` | copies keys while writers still use Consul |
//! | `kv/tests/` | migrations between two small HTTP servers |
//! | `config/` | converts the configuration of a Consul agent |
//! | `limits.rs` | an agent's limits for keys, values and transactions, which a bulk write keeps |
//! | `error.rs` | errors of a migration |

pub mod config;
mod error;
pub mod kv;
pub mod limits;

pub use error::MigrateError;
