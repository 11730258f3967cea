//! `lockmesh bench`: measures an agent: puts, gets, lock cycles, hand-off, session churn, blocked
//! watchers.
//!
//! | module | is |
//! |---|---|
//! | [`wire`] | raw HTTP, as cheap as possible |
//! | [`scenario`] | what is measured in closed loops |
//! | [`watchers`] | thousands of blocked watchers |
//! | [`figures`] | percentiles, tables, JSON |
//!
//! The load runs on one thread, because it shares its machine with what it measures. It writes
//! under a prefix of its own, which it deletes in the end, and never touches another key.

mod figures;
mod scenario;
mod watchers;
mod wire;

use super::context::Context;
use super::error::CliError;
use super::lock::held::report;
use super::output::print_json;
use figures::Figure;
use lockmesh_client::Address;
use lockmesh_protocol::duration;
use scenario::{Plan, Scenario};
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use watchers::Crowd;

/// The exit code after SIGINT, as shells report it.
const INTERRUPTED: u8 = 130;

/// Measure an agent
///
/// Each client has one connection and one pending request. With `handoff` a client is a pair of
/// contenders for one lock, which wait in its queue (`wait=`). Results are in milliseconds;
/// progress is printed on stderr.
/// Ctrl-C prints the results so far.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Scenarios to measure [default: all except watchers]
    #[arg(value_enum, value_name = "SCENARIO")]
    scenarios: Vec<Scenario>,
    /// Numbers of concurrent clients, one measurement each
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,16,64,256")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=20_000))]
    clients: Vec<u32>,
    /// Duration of each measurement
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    duration: Duration,
    /// Size of a value in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=524_288))]
    value_size: u32,
    /// Key prefix for the load, deleted at the end
    #[arg(long, value_name = "KEY", default_value = "lockmesh-bench")]
    prefix: String,
    /// Number of watchers
    #[arg(long, value_name = "COUNT", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    count: u32,
    /// Watch one key per watcher instead of one for all
    #[arg(long)]
    distinct: bool,
    /// Time that watchers stay blocked, for a look at the agent's memory
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "1s")]
    hold: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The plan makes no sense, or the agent failed while it was measured. There are no figures; the
/// keys of the load are deleted where the agent still answers. After SIGINT the figures so far are
/// printed, and the exit code is 130.
pub async fn run(args: Args, context: &Context) -> Result<ExitCode, CliError> {
    if args.duration.is_zero() {
        return Err(CliError::usage("--duration is 0: nothing can be measured in no time"));
    }
    let json = args.json;
    let address = context.address.clone();
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stopper, stop) = watch::channel(false);
        let plan = args.plan(address, stop);
        let figures = runtime.block_on(measure_all(&args, &plan, &stopper))?;
        Ok((figures, *plan.stop.borrow()))
    });
    let failed = |error: io::Error| {
        CliError::failed(format!("cannot measure the agent at {}: {error}", context.address))
    };
    let (figures, is_interrupted) = measured.await.map_err(CliError::failed)?.map_err(failed)?;
    match json {
        true => print_json(&figures)?,
        false => figures::print_table(&figures)?,
    }
    Ok(if is_interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

impl Args {
    fn plan(&self, address: Address, stop: watch::Receiver<bool>) -> Plan {
        // Two that run at once must not meet.
        let prefix = format!("{}/{}", self.prefix.trim_matches('/'), std::process::id());
        let value_size = usize::try_from(self.value_size).unwrap_or(usize::MAX);
        Plan { address, prefix, duration: self.duration, value_size, stop }
    }

    fn crowd(&self) -> Crowd {
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        Crowd { count, distinct: self.distinct, hold: self.hold }
    }
}

/// Measures, then deletes the keys of the load. The first SIGINT ends the measurement after the
/// requests under way, the second one ends the process: the agent may not answer.
async fn measure_all(args: &Args, plan: &Plan, stopper: &watch::Sender<bool>) -> io::Result<Vec<Figure>> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let work = async {
        let scenarios = if args.scenarios.is_empty() { &Scenario::LOOPS[..] } else { &args.scenarios[..] };
        let measured = measure_each(args, scenarios, plan).await;
        // Also after a failure, whose error is reported first.
        let cleaned = plan.clean_up().await;
        let figures = measured?;
        cleaned?;
        Ok(figures)
    };
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = interrupts.recv() => {
                if stopper.send_replace(true) {
                    let kept = format!("interrupted; keys under {}/ may remain", plan.prefix);
                    return Err(io::Error::other(kept));
                }
                report("finishing; press Ctrl-C again to stop at once");
            }
        }
    }
}

async fn measure_each(args: &Args, scenarios: &[Scenario], plan: &Plan) -> io::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let is_stopped = || *plan.stop.borrow();
    for scenario in scenarios {
        if *scenario == Scenario::Watchers && !is_stopped() {
            // Unlike the loops, watchers do not check for a stop, and `--hold` may be long.
            let mut stop = plan.stop.clone();
            tokio::select! {
                measured = watchers::measure(args.crowd(), plan, report) => figures.extend(measured?),
                _ = stop.wait_for(|stop| *stop) => {}
            }
            continue;
        }
        for clients in &args.clients {
            if is_stopped() {
                break;
            }
            let clients = usize::try_from(*clients).unwrap_or(usize::MAX);
            report(&format!("measuring {} with {clients} clients for {:?}", scenario.name(), args.duration));
            figures.extend(scenario::measure(*scenario, clients, plan).await?);
        }
    }
    Ok(figures)
}
