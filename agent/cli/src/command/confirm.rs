//! A confirmation before irreversible actions.
//!
//! Asked only on a terminal. Scripts for Consul's CLI, which asks nothing, run unchanged: without a
//! terminal as standard input the answer is yes.

use super::context::Context;
use super::error::CliError;
use lockmesh_client::Read;
use std::io::{self, BufRead, IsTerminal, Write};

/// Asks for confirmation, unless `is_sure` or standard input is not a terminal. `danger` follows
/// the name of the cluster: "loses …".
///
/// # Errors
/// The answer was not yes, or the cluster's id is unknown. Nothing was changed.
pub(super) async fn confirm(context: &Context, is_sure: bool, danger: &str) -> Result<(), CliError> {
    if is_sure || !io::stdin().is_terminal() {
        return Ok(());
    }
    let quorum = context.client()?.operator().servers(&Read::default()).await?;
    let (cluster, address) = (&quorum.cluster_id, &context.address);
    let question = format!("The cluster {cluster}, reached through the agent at {address}, {danger}.");
    match is_agreed(&question, &mut io::stdin().lock(), &mut io::stderr())? {
        true => Ok(()),
        false => Err(CliError::failed("not confirmed; nothing was changed")),
    }
}

/// As [`confirm`], but an error without a terminal: for commands that Consul does not have.
///
/// # Errors
/// As [`confirm`], or nobody can be asked.
pub(super) async fn insist(context: &Context, is_sure: bool, danger: &str) -> Result<(), CliError> {
    match is_sure || io::stdin().is_terminal() {
        true => confirm(context, is_sure, danger).await,
        false => Err(CliError::failed(format!(
            "the cluster {danger}; nothing was changed, because there is no terminal to ask: confirm with --yes"
        ))),
    }
}

/// `true` if the answer is the whole word.
fn is_agreed(question: &str, input: &mut impl BufRead, output: &mut impl Write) -> io::Result<bool> {
    write!(output, "{question}\nType yes to continue: ")?;
    output.flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_word_agrees() {
        for (answer, agreed) in [("yes\n", true), ("yes", true), ("y\n", false), ("no\n", false), ("", false)]
        {
            let mut shown = Vec::new();
            let is_agreed = is_agreed("All is lost.", &mut answer.as_bytes(), &mut shown);
            assert_eq!(is_agreed.expect("memory is readable"), agreed, "{answer:?}");
            assert_eq!(shown, b"All is lost.\nType yes to continue: ");
        }
    }
}
