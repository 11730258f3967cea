//! The messages between a guard and its supervisor, and their form on the socket.
//!
//! | message | from | bytes: kind, number, time |
//! |---|---|---|
//! | `Deadline` | guard | `D`, 0, nanoseconds of the boot clock |
//! | `Signal` | guard | `S`, signal, 0 |
//! | `Stop` | guard | `T`, signal, nanoseconds of the boot clock |
//! | `HoldEnded` | guard | `H`, 0, 0 |
//! | `Started`, `NotStarted` | supervisor | `R`, process id, 0; `N`, error number, 0 |
//! | `Exited` | supervisor | `C`, exit code, 0; `X`, signal, 0 |
//! | `TreeGone`, `Killed` | supervisor | `G`, 0, 0; `K`, 0, 0 |

use super::{End, Role, SignalNumber};
use lockmesh_client::holder::Moment;

/// The length of a message in bytes.
pub const LENGTH: usize = 13;

/// A message between a guard and its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The command must have ended by then; replaces all earlier deadlines.
    Deadline(Moment),
    /// Send this signal to the command.
    Signal(SignalNumber),
    /// End the command with this signal, and kill it at that time.
    Stop(SignalNumber, Moment),
    /// The hold has ended, or was released: nothing is left to do.
    HoldEnded,
    /// The command runs, with this process id.
    Started(i32),
    /// The command was not started, for this error number.
    NotStarted(i32),
    /// The command's own process has ended.
    Exited(End),
    /// All processes of the command have ended.
    TreeGone,
    /// All processes of the command were sent SIGKILL.
    Killed,
}

impl Message {
    /// Returns `true` if this role sends such messages.
    pub fn is_from(self, role: Role) -> bool {
        let is_of_guard =
            matches!(self, Self::Deadline(_) | Self::Signal(_) | Self::Stop(..) | Self::HoldEnded);
        is_of_guard == matches!(role, Role::Guard(_))
    }

    /// Returns the bytes of the message.
    pub fn encode(self) -> [u8; LENGTH] {
        let none = Moment::default();
        let (kind, number, time) = match self {
            Self::Deadline(deadline) => (b'D', 0, deadline),
            Self::Signal(signal) => (b'S', signal, none),
            Self::Stop(signal, at) => (b'T', signal, at),
            Self::HoldEnded => (b'H', 0, none),
            Self::Started(pid) => (b'R', pid, none),
            Self::NotStarted(error) => (b'N', error, none),
            Self::Exited(End::Code(code)) => (b'C', i32::from(code), none),
            Self::Exited(End::Killed(signal)) => (b'X', signal, none),
            Self::TreeGone => (b'G', 0, none),
            Self::Killed => (b'K', 0, none),
        };
        let mut bytes = [kind; LENGTH];
        bytes[1..5].copy_from_slice(&number.to_le_bytes());
        bytes[5..].copy_from_slice(&time.as_nanos().to_le_bytes());
        bytes
    }

    /// Returns the message of these bytes; `None` if they are none.
    pub fn decode(bytes: &[u8; LENGTH]) -> Option<Self> {
        let number = i32::from_le_bytes(bytes[1..5].try_into().ok()?);
        let time = u64::from_le_bytes(bytes[5..].try_into().ok()?);
        let time = Moment::from_nanos(time);
        Some(match bytes[0] {
            b'D' => Self::Deadline(time),
            b'S' => Self::Signal(number),
            b'T' => Self::Stop(number, time),
            b'H' => Self::HoldEnded,
            b'R' => Self::Started(number),
            b'N' => Self::NotStarted(number),
            b'C' => Self::Exited(End::Code(u8::try_from(number).ok()?)),
            b'X' => Self::Exited(End::Killed(number)),
            b'G' => Self::TreeGone,
            b'K' => Self::Killed,
            _ => return None,
        })
    }
}
