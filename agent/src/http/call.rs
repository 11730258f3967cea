//! A request as endpoints see it: parameters, consistency, waiting, datacenter, body.

use super::access;
use super::answer::{Failure, MetaKind};
use super::api::Api;
use super::body::Body;
use super::peer::Peer;
use crate::go::query::Params;
use crate::go::{duration, number};
use crate::upstream::Upstream;
use crate::upstream::calls::Read;
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use lockmesh_client::outcome::Outcome;
use lockmesh_client::shape::json::Layout;
use lockmesh_net::random::seed;
use lockmesh_protocol::acl::Caller;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::id::LogIndex;
use lockmesh_protocol::query::{Answer, Blocking, Consistency, Query};
use lockmesh_protocol::random::Random;
use lockmesh_protocol::reply::Applied;
use lockmesh_protocol::rpc::Unavailable;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of bytes discarded from a client that sends too much, so that it reads the
/// error and not a reset.
const MAX_DISCARDED: usize = 8 << 20;
/// The maximum time for that.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// A request on its way through an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Call<'a> {
    /// The context of the request.
    pub(super) api: &'a Api,
    /// The upstream for calls with the rights of the client.
    pub(super) upstream: Upstream,
    /// The identity of the client.
    pub(super) caller: Caller,
    /// The client.
    pub(super) peer: Peer,
    /// Method, URI and headers.
    pub(super) head: &'a Parts,
    /// The rest of the path after the endpoint's own, decoded.
    pub(super) tail: &'a str,
    /// Set if the path is not UTF-8, and `tail` has replacement characters instead. Only reads
    /// receive such a path.
    pub(super) is_lossy: bool,
    /// The query string.
    pub(super) params: Params<'a>,
}

/// The options of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadOptions {
    /// The consistency mode.
    pub(super) consistency: Consistency,
    /// Parameters of a blocking read.
    pub(super) blocking: Option<Blocking>,
}

impl Call<'_> {
    /// Returns the method.
    pub(super) fn method(&self) -> &Method {
        &self.head.method
    }

    /// Returns the layout of the response.
    pub(super) fn layout(&self) -> Layout {
        let pretty = self.params.has("pretty");
        Layout { indented: pretty || self.api.limits.indent_always, newline: pretty }
    }

    /// Changes the state, with the rights of this client.
    pub(super) async fn propose(&self, command: Command) -> Result<Applied, Failure> {
        let is_restricted = command.is_about_nodes() && !self.may_operate();
        let command = if is_restricted { command.restricted() } else { command };
        Ok(self.upstream.call(command).await?)
    }

    /// Returns `true` if this client may send operator requests.
    pub(super) fn may_operate(&self) -> bool {
        let is_trusted = matches!(self.peer, Peer::Unix { .. }) || self.api.access.operator_socket.is_none();
        is_trusted && access::permits_all(self)
    }

    /// Reads from the state. A failure carries the headers of `meta`, if the endpoint sends them on
    /// failures too.
    pub(super) async fn read(
        &self,
        query: Query,
        options: ReadOptions,
        meta: Option<MetaKind>,
    ) -> Result<Arc<Answer>, Failure> {
        self.try_read(query, options).await.map_err(|unavailable| Self::failure(unavailable, meta))
    }

    /// The same as [`Call::read`], with the servers' own reason for a failure.
    pub(super) async fn try_read(
        &self,
        query: Query,
        options: ReadOptions,
    ) -> Result<Arc<Answer>, Unavailable> {
        let _blocked = options.blocking.map(|_| crate::metrics::BlockedWatcher::begin());
        let ReadOptions { consistency, blocking } = options;
        self.upstream.call(Read { query, consistency, blocking }).await
    }

    /// Returns the failure of a read.
    pub(super) fn failure(unavailable: Unavailable, meta: Option<MetaKind>) -> Failure {
        match meta {
            Some(kind) => Failure::from(unavailable).with_meta(kind),
            None => Failure::from(unavailable),
        }
    }

    /// Rejects features of Consul's enterprise edition, and other datacenters.
    pub(super) fn check_place(&self) -> Result<(), Failure> {
        self.refuse_enterprise("ns", "X-Consul-Namespace", "Namespaces")?;
        self.refuse_enterprise("partition", "X-Consul-Partition", "Partitions")?;
        let named = self.params.non_empty("datacenter").or_else(|| self.params.non_empty("dc"));
        check_datacenter(self.api, named.unwrap_or_default())
    }

    fn refuse_enterprise(&self, param: &str, header: &str, feature: &str) -> Result<(), Failure> {
        let why = format_args!("{feature} are a Consul Enterprise feature");
        if self.params.non_empty(param).is_some() {
            return Err(Failure::bad_request(format!("Invalid query parameter: {param:?} - {why}")));
        }
        if self.head.headers.get(header).is_some_and(|value| !value.is_empty()) {
            return Err(Failure::bad_request(format!("Invalid header: {header:?} - {why}")));
        }
        Ok(())
    }

    /// Returns the read options from the parameters.
    pub(super) fn read_options(&self) -> Result<ReadOptions, Failure> {
        let consistency = self.consistency()?;
        check_cache_control(&self.head.headers)?;
        let wait = self.wait(self.api.limits.default_query_time)?;
        let index = self.index()?;
        self.check_place()?;
        // Clients without a previous index send 0, and are answered at once.
        let blocking = (index > 0).then(|| Blocking { index: LogIndex(index), wait: spread(wait) });
        Ok(ReadOptions { consistency, blocking })
    }

    /// Returns the consistency mode.
    pub(super) fn consistency(&self) -> Result<Consistency, Failure> {
        let mut stale = self.params.has("stale");
        let consistent = self.params.has("consistent");
        if let Some(text) = self.params.non_empty("max_stale") {
            let limit = duration::parse(text)
                .map_err(|_| Failure::bad_request(format!("Invalid max_stale value {text:?}")))?;
            // The staleness of an answer cannot be limited here, only allowed or not.
            stale |= limit > 0;
        }
        match (stale, consistent) {
            (true, true) => {
                Err(Failure::bad_request("Cannot specify ?stale with ?consistent, conflicting semantics."))
            }
            (false, true) if self.params.has("cached") => {
                Err(Failure::bad_request("Cannot specify ?cached with ?consistent, conflicting semantics."))
            }
            (false, true) => Ok(Consistency::Consistent),
            (true, false) => Ok(Consistency::Stale),
            (false, false) => Ok(Consistency::Default),
        }
    }

    /// Returns the index after which to wait for a change; 0 for no wait.
    pub(super) fn index(&self) -> Result<u64, Failure> {
        match self.params.non_empty("index") {
            Some(text) => number::parse_u64(text).map_err(|_| Failure::bad_request("Invalid index")),
            None => Ok(0),
        }
    }

    /// Returns the maximum wait; `usual` if the client does not specify one.
    pub(super) fn wait(&self, usual: Duration) -> Result<Duration, Failure> {
        let asked = match self.params.non_empty("wait") {
            Some(text) => duration::parse(text).map_err(|_| Failure::bad_request("Invalid wait time"))?,
            None => 0,
        };
        let limits = &self.api.limits;
        let wait = if asked > 0 { duration::clamped(asked) } else { usual };
        Ok(wait.min(limits.max_query_time))
    }

    /// Returns the maximum wait of an acquire; `None` if it does not wait.
    pub(super) fn lock_wait(&self) -> Result<Option<Duration>, Failure> {
        let Some(text) = self.params.non_empty("wait") else { return Ok(None) };
        let asked = duration::parse(text).map_err(|_| Failure::bad_request("Invalid wait time"))?;
        Ok((asked > 0).then(|| duration::clamped(asked).min(self.api.limits.max_query_time)))
    }

    /// Returns the announced length of the body; `None` without one.
    pub(super) fn content_length(&self) -> Option<u64> {
        self.head.headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// Reads the whole body. `too_large` returns the error text for a body over the limit; it
    /// receives the announced length.
    pub(super) async fn body(
        &self,
        mut body: Body,
        limit: usize,
        too_large: impl Fn(Option<u64>) -> String,
    ) -> Result<Bytes, Failure> {
        if body.is_end_stream() {
            return Ok(Bytes::new());
        }
        let announced = self.content_length();
        // Checked by the announced length, before a byte is stored.
        if announced.is_some_and(|length| length > limit as u64) {
            self.discard(&mut body).await;
            return Err(refused_size(too_large(announced)));
        }
        let reading = read_up_to(&mut body, limit);
        let read = tokio::time::timeout(self.api.limits.body_read_timeout, reading).await;
        let read = read.unwrap_or_else(|_| {
            crate::metrics::LIMITS.with_label_values(&["body_read_timeout"]).inc();
            let text = "the request's body took too long to arrive";
            Err(Failure::new(StatusCode::REQUEST_TIMEOUT, text).with_outcome(Outcome::NotDone))
        })?;
        match read {
            Some(bytes) => Ok(bytes),
            None => {
                self.discard(&mut body).await;
                Err(refused_size(too_large(None)))
            }
        }
    }

    /// Reads the body of a request that is not a key's value, a transaction or a snapshot.
    pub(super) async fn small_body(&self, body: Body) -> Result<Bytes, Failure> {
        let limit = self.api.limits.max_body_size;
        self.body(body, limit, |_| format!("Request body too large, max size: {limit} bytes.")).await
    }

    /// Discards the rest of a body, within limits, unless the client waits for `100 Continue`.
    async fn discard(&self, body: &mut Body) {
        let hopeless = self.content_length().is_some_and(|length| length > MAX_DISCARDED as u64);
        // A client that waits for `100 Continue` sends nothing once it is rejected. A client that
        // sends far too much gets a reset in any case.
        if hopeless || self.head.headers.contains_key(header::EXPECT) {
            return;
        }
        let taking = async {
            let mut discarded = 0;
            while let Some(Ok(frame)) = body.frame().await {
                discarded += frame.data_ref().map_or(0, Bytes::len);
                if discarded > MAX_DISCARDED {
                    return;
                }
            }
        };
        // The request is rejected in any case.
        let _ = tokio::time::timeout(DISCARD_TIMEOUT, taking).await;
    }
}

/// Rejects a datacenter other than this one; the empty name means this one.
pub(super) fn check_datacenter(api: &Api, named: &str) -> Result<(), Failure> {
    if named.is_empty() || named == api.identity.datacenter {
        return Ok(());
    }
    Err(Failure::refused("No path to datacenter"))
}

/// Returns 400 for a body that was cut off.
pub(super) fn broken_off(what: &str, error: &io::Error) -> Failure {
    Failure::bad_request(format!("the {what} broke off: {error}")).with_outcome(Outcome::NotDone)
}

fn refused_size(text: String) -> Failure {
    crate::metrics::LIMITS.with_label_values(&["body_size"]).inc();
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

/// Reads a body to its end; returns `None` if it has more than `limit` bytes.
async fn read_up_to(body: &mut Body, limit: usize) -> Result<Option<Bytes>, Failure> {
    let mut whole = Bytes::new();
    let mut pieces: Option<BytesMut> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken_off("body", &error))?;
        // Trailers have no meaning here.
        let Ok(data) = frame.into_data() else { continue };
        let length = whole.len() + pieces.as_ref().map_or(0, BytesMut::len) + data.len();
        if length > limit {
            return Ok(None);
        }
        match &mut pieces {
            Some(pieces) => pieces.extend_from_slice(&data),
            // Most bodies arrive in one piece, which is not copied.
            None if whole.is_empty() => whole = data,
            None => {
                // Larger than needed now, so that small pieces are not moved each time.
                let mut first = BytesMut::with_capacity(length.max(2 * whole.len()).min(limit));
                first.extend_from_slice(&std::mem::take(&mut whole));
                first.extend_from_slice(&data);
                pieces = Some(first);
            }
        }
    }
    Ok(Some(pieces.map_or(whole, BytesMut::freeze)))
}

/// Rejects a `Cache-Control` with invalid numbers; it has no other effect, because reads are always
/// fresh.
fn check_cache_control(headers: &HeaderMap) -> Result<(), Failure> {
    let Some(value) = headers.get(header::CACHE_CONTROL) else { return Ok(()) };
    // A value that is not text is rejected like an invalid number.
    let words = value.to_str().unwrap_or("max-age=?").to_ascii_lowercase();
    for word in words.split(',').map(str::trim) {
        let seconds = word.strip_prefix("max-age=").or_else(|| word.strip_prefix("stale-if-error="));
        if seconds.is_some_and(|seconds| seconds.parse::<i64>().is_err()) {
            return Err(Failure::bad_request("Invalid Cache-Control header."));
        }
    }
    Ok(())
}

/// Returns a wait with a little jitter added, so that waiters do not return all at once.
pub(super) fn spread(wait: Duration) -> Duration {
    // A sixteenth, as in Consul: some clients wait no longer before they give up.
    wait + wait.mul_f64(Random::new(seed()).fraction() / 16.0)
}
