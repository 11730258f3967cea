//! `/v1/status/…`: the leader and the voters. Answered from what this agent knows; a cluster
//! without a leader is not an error.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use crate::upstream::calls::StatusOf;
use http::Response;
use lockmesh_protocol::rpc::Status;

pub(super) async fn leader(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    // Until this agent is registered no session can be created on its node, so its clients see no
    // leader.
    let status =
        call.api.upstream.call(StatusOf::Nearest).await.ok().filter(|status| status.caller.is_some());
    let address = status.as_ref().and_then(leader_address).unwrap_or_default();
    Ok(answer::json(address, call.layout()))
}

pub(super) async fn peers(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let status = call.api.upstream.call(StatusOf::Nearest).await?;
    let addresses: Vec<_> = status.servers.iter().map(|server| server.address.as_str()).collect();
    Ok(answer::json(&addresses, call.layout()))
}

fn leader_address(status: &Status) -> Option<&str> {
    let leader = status.leader?;
    status.servers.iter().find(|server| server.id == leader).map(|server| server.address.as_str())
}
