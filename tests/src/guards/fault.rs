//! The faults: what happens to `lockmesh lock`, its supervisor, its agent and its outputs while its
//! command runs.

use super::command::Kind;

/// The outputs of the `lockmesh lock` under the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Files.
    Files,
    /// Standard output is a pipe without a reader's attention.
    StdoutPipe,
    /// Standard error is such a pipe.
    StderrPipe,
    /// Both, and standard input, are a terminal.
    Terminal,
}

/// A process of the holder's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The `lockmesh lock`, which guards the command.
    Lock,
    /// Its supervisor.
    Supervisor,
    /// The agent.
    Agent,
}

/// One action of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// SIGKILL.
    Kill(Target),
    /// SIGSTOP, until the end of the round.
    Stop(Target),
    /// Takes the host's link down.
    Unplug,
    /// Fills the pipe.
    Fill,
    /// Types a control character at the terminal.
    Type(u8),
    /// Destroys the session from another host.
    Destroy,
}

use Step::{Destroy, Fill, Kill, Stop, Type, Unplug};
use Target::{Agent, Lock, Supervisor};

/// Stops the output of a terminal.
const CTRL_S: Step = Type(0x13);
/// Suspends the foreground group of a terminal.
const CTRL_Z: Step = Type(0x1a);

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The name.
    pub name: &'static str,
    /// The outputs of the `lockmesh lock`.
    pub output: Output,
    /// The actions, without a pause in between. Times count from the last one.
    pub steps: &'static [Step],
    /// `true` if the supervisor lives and reaches its agent: the recorded end of the command
    /// releases the lock.
    pub is_prompt: bool,
}

/// All faults.
pub const ALL: [Fault; 16] = [
    fault("kill", Output::Files, &[Kill(Lock)], true),
    // `pkill -9 lockmesh` does the same.
    fault("kill-both", Output::Files, &[Kill(Lock), Kill(Agent)], false),
    fault("kill-link-down", Output::Files, &[Unplug, Kill(Lock)], false),
    fault("supervisor", Output::Files, &[Kill(Supervisor)], false),
    fault("kill-guards", Output::Files, &[Kill(Lock), Kill(Supervisor)], false),
    fault("stop", Output::Files, &[Stop(Lock)], true),
    fault("stop-supervisor", Output::Files, &[Stop(Supervisor), Kill(Agent)], false),
    // The kernel wakes the supervisor: a stopped process group that loses its last relative in its
    // session is sent SIGHUP and SIGCONT.
    fault("stop-kill", Output::Files, &[Stop(Supervisor), Kill(Lock)], true),
    fault("kill-stop", Output::Files, &[Stop(Lock), Kill(Supervisor)], false),
    fault("full-stdout", Output::StdoutPipe, &[Fill, Destroy], false),
    fault("full-stderr", Output::StderrPipe, &[Fill, Destroy], false),
    fault("full-stdout-agent", Output::StdoutPipe, &[Fill, Kill(Agent)], false),
    fault("full-stderr-agent", Output::StderrPipe, &[Fill, Kill(Agent)], false),
    fault("terminal", Output::Terminal, &[CTRL_S, Destroy], false),
    fault("terminal-agent", Output::Terminal, &[CTRL_S, Kill(Agent)], false),
    // A suspended command records nothing, so its end is at an unknown time.
    fault("suspended", Output::Terminal, &[CTRL_Z], false),
];

const fn fault(name: &'static str, output: Output, steps: &'static [Step], is_prompt: bool) -> Fault {
    Fault { name, output, steps, is_prompt }
}

impl Fault {
    /// Returns `true` if the session is destroyed. Then only a lock-delay gives the guard time to
    /// learn of it, so rounds without one prove nothing.
    pub fn destroys(&self) -> bool {
        self.steps.contains(&Destroy)
    }

    /// Returns `true` if no process of Lockmesh runs that could end all of the command. The kernel
    /// ends the command's first process, and nothing ends its children.
    pub fn excepts(&self, kind: Kind) -> bool {
        let is_unguarded = self.steps.iter().any(|step| [Stop(Lock), Kill(Lock)].contains(step));
        is_unguarded && self.steps.contains(&Kill(Supervisor)) && kind == Kind::Forking
    }
}
