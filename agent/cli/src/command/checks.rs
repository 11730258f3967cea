//! `lockmesh checks`: the checks of this agent with their status.

use super::context::Context;
use super::error::CliError;
use super::output::{OutputArgs, Table};
use lockmesh_client::shape::health::Check;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// List the checks of this agent with their status
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only checks with this status: passing, warning or critical
    #[arg(long, value_name = "STATUS", value_parser = ["passing", "warning", "critical"])]
    #[arg(hide_possible_values = true)]
    status: Option<String>,
    /// Only checks that this filter selects, such as 'ServiceName == web'
    #[arg(long, value_name = "FILTER", default_value = "", hide_default_value = true)]
    filter: String,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
///
/// # Errors
/// The agent did not reply, or the output has no reader. Nothing was changed; retry.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    let mut checks = context.client()?.agent().filter(&args.filter).checks().await?;
    checks.retain(|_, check| args.status.as_ref().is_none_or(|status| check.status == *status));
    args.output.print(&checks, table)?;
    Ok(ExitCode::SUCCESS)
}

fn table(checks: &BTreeMap<String, Check>) -> Table {
    let mut table = Table::new(["ID", "Service", "Kind", "Status", "Output"]);
    for (id, check) in checks {
        table.row([
            id.clone(),
            check.service_id.clone(),
            check.kind.clone(),
            check.status.clone(),
            check.output.lines().next().unwrap_or_default().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_fits_a_row() {
        let check = |service: &str, kind: &str, output: &str| Check {
            service_id: service.into(),
            kind: kind.into(),
            status: "critical".into(),
            output: output.into(),
            ..Check::default()
        };
        let checks = [
            ("disk".to_owned(), check("", "script", "94% used\n/dev/sda1\n")),
            ("service:web".to_owned(), check("web", "ttl", "")),
        ];
        let expected = "ID           Service  Kind    Status    Output\n\
                        disk         -        script  critical  94% used\n\
                        service:web  web      ttl     critical  -";
        assert_eq!(table(&checks.into()).render(), expected);
    }
}
