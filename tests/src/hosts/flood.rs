//! Clients that take every connection that a server or agent has room for.

use crate::dialect::let_pass;
use crate::http::Address;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The number of clients: more than a limited process has file descriptors, and few enough that the
/// rest fits into the backlog of its socket, because connecting would wait otherwise.
const CLIENTS: usize = 160;
/// The interval after which clients that were disconnected come back.
const INTERVAL: Duration = Duration::from_millis(20);
/// The maximum time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

/// Connected clients that send nothing, and come back at once when they are disconnected.
pub struct Flood {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// Starts to connect.
    pub fn start(address: Address) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let ending = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut clients = Vec::new();
            while !ending.load(Ordering::Relaxed) {
                clients.retain_mut(is_connected);
                let room = CLIENTS - clients.len();
                // A full backlog rejects the rest: the next turn tries again.
                clients.extend((0..room).map_while(|_| connect(&address).ok()));
                let_pass(INTERVAL);
            }
        });
        Self { is_over, thread }
    }

    /// Disconnects all clients.
    pub fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("the clients do not panic");
    }
}

fn connect(address: &Address) -> io::Result<File> {
    let socket: OwnedFd = match address {
        Address::Unix(path) => {
            let socket = UnixStream::connect(path)?;
            socket.set_nonblocking(true)?;
            socket.into()
        }
        Address::Tcp(address) => {
            let socket = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
            socket.set_nonblocking(true)?;
            socket.into()
        }
    };
    Ok(socket.into())
}

/// Returns `false` if the process closed the connection or sent a rejection.
fn is_connected(client: &mut File) -> bool {
    matches!(client.read(&mut [0; 256]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::{CLIENTS, Flood};
    use crate::http::Address;
    use std::net::TcpListener;

    #[test]
    fn disconnected_clients_reconnect() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let flood = Flood::start(Address::Tcp(listener.local_addr().expect("a bound address")));
        let accepted: Vec<_> = listener.incoming().take(CLIENTS + 10).map(drop).collect();
        assert_eq!(accepted.len(), CLIENTS + 10, "each was dropped, and connected again");
        flood.end();
    }
}
