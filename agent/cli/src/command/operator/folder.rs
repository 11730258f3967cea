//! The data folder of a command that needs no running server.

use super::super::error::CliError;
use crate::config::{Sources, load};
use lockmesh_net::owner;
use lockmesh_server::config::ServerConfig;
use std::path::PathBuf;

/// The data folder of a server on this machine.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub(super) struct DataFolder {
    /// The server's configuration file, which names its data folder
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's data folder
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl DataFolder {
    /// The path of the folder.
    pub(super) fn path(&self) -> Result<PathBuf, CliError> {
        if let Some(folder) = &self.data_dir {
            return Ok(folder.clone());
        }
        let config: ServerConfig =
            load(&Sources::of_process(self.config.clone(), Vec::new())).map_err(CliError::usage)?;
        owner::allow_others(config.allow_other_owners);
        Ok(config.data_dir)
    }
}
