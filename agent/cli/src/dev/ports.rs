//! Ports for processes that do not run yet, and that listen there again whenever they are started.
//!
//! **Invariant:** of commands that run at the same time, no two pick the same port.

use crate::error::RunError;
use lockmesh_net::random;
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;

/// They are below the system's ephemeral ports, so that the port of a stopped process is not
/// assigned to another one.
const PORTS: Range<u16> = 20_000..32_000;

/// The ports of one command's processes: as long as this lives, no other command picks them.
#[derive(Debug, Default)]
pub(super) struct Ports {
    reserved: Vec<Socket>,
}

impl Ports {
    /// Reserves the port of an address that one of the processes has from an earlier start.
    pub(super) fn keep(&mut self, address: SocketAddr) {
        // If the process still runs, its port is in use.
        self.reserved.extend(reserve(address));
    }

    /// An address of this host without a listener, for TCP and UDP.
    pub(super) fn pick(&mut self, ip: IpAddr) -> Result<SocketAddr, RunError> {
        // Commands that start at the same time seldom try the same ports.
        let first = random::seed() % PORTS.len() as u64;
        for port in PORTS.cycle().skip(first as usize).take(PORTS.len()) {
            let address = SocketAddr::from((ip, port));
            if let Ok(socket) = reserve(address)
                && UdpSocket::bind(address).is_ok()
            {
                self.reserved.push(socket);
                return Ok(address);
            }
        }
        Err(RunError::system("cannot find a free port", io::ErrorKind::AddrInUse.into()))
    }
}

/// A TCP socket bound to this address, as a reservation. It does not listen and allows reuse of the
/// address, so that the intended process can listen there; another reservation of the address
/// fails.
fn reserve(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.bind(&address.into())?;
    // Not before: where both allow it, the same address can be bound twice.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn reserved_port_usable_only_by_owner() {
        let mut ports = Ports::default();
        let address = ports.pick(LOOPBACK).expect("there is a free one");
        assert!(PORTS.contains(&address.port()));
        assert!(reserve(address).is_err(), "it is reserved");
        let listener = TcpListener::bind(address).expect("it is reserved for this");
        assert!(UdpSocket::bind(address).is_ok());
        drop(ports);
        assert!(reserve(address).is_err(), "somebody listens there");
        drop(listener);
        assert!(reserve(address).is_ok());
    }

    #[test]
    fn restarted_process_finds_port_free() {
        let mut ports = Ports::default();
        let address = ports.pick(LOOPBACK).expect("there is a free one");
        drop(TcpListener::bind(address).expect("it is reserved for this"));
        drop(TcpListener::bind(address).expect("it was started again"));
        let mut later = Ports::default();
        later.keep(address);
        assert!(later.reserved.is_empty(), "another command has it");
        drop(ports);
        later.keep(address);
        assert_eq!(later.reserved.len(), 1);
    }
}
