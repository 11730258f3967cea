//! The bytes of three protocols: pure, no sockets, tested with known bytes.
//!
//! | module | is |
//! |---|---|
//! | [`http1`] | requests to and responses from a Lockmesh agent |
//! | [`http2`] | frames and header blocks, as far as gRPC needs them |
//! | [`protobuf`] | fields of messages |
//! | [`etcd`] | the few of etcd's messages that the work needs |
//! | [`jute`] | ZooKeeper's records |
//!
//! All are as lean as their protocols allow. The generator shares the machine with the measured
//! services, so it must use little of it, and about as little for each of the three.

pub(crate) mod etcd;
pub(crate) mod http1;
pub(crate) mod http2;
pub(crate) mod jute;
pub(crate) mod protobuf;

use std::io;

/// Returns the error of a malformed response.
pub(crate) fn malformed(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}
