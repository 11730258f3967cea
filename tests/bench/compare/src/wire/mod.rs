//! The bytes of three protocols: pure, no sockets, tested by bytes that are known.
//!
//! | module | is |
//! |---|---|
//! | [`http1`] | requests to and answers from a Lockmesh agent |
//! | [`http2`] | frames and header blocks, as far as gRPC needs them |
//! | [`protobuf`] | fields of messages |
//! | [`etcd`] | the handful of etcd's messages that the work needs |
//! | [`jute`] | ZooKeeper's records |
//!
//! All are as lean as their protocols allow, so that the generator takes little from the machine
//! that it shares with what it measures, and about as little for each of the three.

pub(crate) mod etcd;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod jute;
pub(crate) mod protobuf;

use std::io;

/// An answer that cannot be understood.
pub(crate) fn malformed(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
