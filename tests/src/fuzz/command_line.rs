//! The command line, and configuration files.

use super::{as_text, bytes_of};
use lockmesh_agent::config::AgentConfig;
use lockmesh_cli::command::{self, spelling};
use lockmesh_cli::config::{Role, Sources, load};
use lockmesh_server::config::ServerConfig;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;

/// Arguments, separated by newlines: converted from Consul's spelling to ours, then parsed.
pub fn cli_arguments(data: &[u8]) {
    let words = data.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec()));
    let words: Vec<OsString> = [OsString::from("lockmesh")].into_iter().chain(words).collect();
    let mut root = command::command();
    root.build();
    let rewritten = spelling::rewrite(words, &root);
    assert_eq!(rewritten.first(), Some(&OsString::from("lockmesh")), "the program's name comes first");
    let _ = root.try_get_matches_from(rewritten);
}

/// Returns seeds of [`cli_arguments`].
pub fn argument_seeds() -> Vec<Vec<u8>> {
    bytes_of(&[
        "lock\n-n=3\n-try=5s\njobs/nightly\n--\nsh\n-c\nexit 3",
        "lock\n-timeout\n5s\n-child-exit-code\nname\ncommand\n-x",
        "kv\nput\n-cas\n-modify-index=0\n-flags\n42\nkey\nvalue",
        "kv\nget\n-recurse=true\n-http-addr=unix:///run/x.sock\na",
        "kv\nget\n-recurse=false\n-\n",
        "dev\n--http\n127.0.0.1:0\n--node\nn\n--json",
        "session\ncreate\n-ttl=15s\n-lock-delay\n0s",
        "services\nregister\n-name=web\n-port\n80\n-meta=a=b\n-check-ttl=15s",
        "maint\n-enable\n-reason=disk\n-service=web",
        "operator\nraft\nlist-peers\n-stale",
        "help",
        "--version",
    ])
}

/// A server's configuration file; after a NUL follow `key=value` settings, one per line.
pub fn config_server(data: &[u8]) {
    configuration::<ServerConfig>(data);
}

/// An agent's configuration file, in the same form.
pub fn config_agent(data: &[u8]) {
    configuration::<AgentConfig>(data);
}

/// Returns seeds of [`config_server`].
pub fn server_config_seeds() -> Vec<Vec<u8>> {
    let sample = include_str!("../../../deploy/config/server.toml");
    let small = "[storage]\ncheckpoint_interval = \"1m30s\"\n\0limits.watches=5\nnode.name=x=y";
    bytes_of(&[sample, small, "", "x = 1", "[rpc]\nlisten = \"[::]:0\"\n"])
}

/// Returns seeds of [`config_agent`].
pub fn agent_config_seeds() -> Vec<Vec<u8>> {
    let sample = include_str!("../../../deploy/config/agent.toml");
    let small = "[http]\ntcp = \"127.0.0.1:8501\"\nsocket_mode = \"0600\"\n\0upstream.servers=a:1,b:2";
    let definitions = "[[services]]\nname = \"web\"\ncheck = { http = \"http://h/\", interval = \"10s\" }\n\
                       [[checks]]\nname = \"disk\"\nttl = \"1m\"\n\0registry.max_running=2";
    bytes_of(&[sample, small, "", "[http]\nsession_ttl_min = \"-1s\"\n", "[[http]]\n", definitions])
}

fn configuration<T: Role>(data: &[u8]) {
    let Some(text) = as_text(data) else { return };
    let (text, settings) = text.split_once('\0').unwrap_or((text, ""));
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("it can be written");
    let settings = settings.lines().map(str::to_owned).collect();
    let sources = Sources { file: Some(file.path().into()), environment: Vec::new(), settings };
    match load::<T>(&sources) {
        Ok(config) => config.check().expect("what was loaded was checked"),
        Err(error) => assert!(!error.to_string().is_empty(), "an error has a message"),
    }
}
