//! `/v1/catalog/register` and `/v1/catalog/deregister`.
//!
//! The state validates a registration, with its own error texts, except for the address and the
//! metadata of a service.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::{Call, check_datacenter};
use crate::definitions::{ServiceError, check_service, parse_deregistration, parse_registration};
use crate::go::json::JsonError;
use http::Response;
use lockmesh_protocol::command::Command;
use lockmesh_protocol::reply::Reply;

pub(super) async fn register(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let (datacenter, registration) = parse_registration(&body).map_err(undecodable)?;
    check_datacenter(call.api, &datacenter)?;
    let mut registration = registration;
    // A named datacenter was found to be this one, and an omitted one means this one.
    registration.node.datacenter.clone_from(&call.api.identity.datacenter);
    registration.service.as_ref().map_or(Ok(()), check_service).map_err(|reason| {
        // Consul finds wrong metadata in its state, and a wrong address before that.
        let prefix = match reason {
            ServiceError::Meta { .. } => "failed inserting service: ",
            ServiceError::Address(_) => "",
        };
        Failure::refused(format!("{prefix}{reason}"))
    })?;
    done(call, Command::Register(registration)).await
}

pub(super) async fn deregister(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let (datacenter, deregistration) = parse_deregistration(&body).map_err(undecodable)?;
    check_datacenter(call.api, &datacenter)?;
    done(call, Command::Deregister(deregistration)).await
}

async fn done(call: &Call<'_>, command: Command) -> Result<Response<Body>, Failure> {
    let applied = call.propose(command).await?;
    match applied.reply {
        Reply::Refused(refusal) => Err(refusal.into()),
        _ => Ok(answer::with_write_index(answer::flag(true, call.layout()), applied.index)),
    }
}

fn undecodable(error: JsonError) -> Failure {
    let about_enterprise = match &error {
        JsonError::UnknownField(name) if name.eq_ignore_ascii_case("Namespace") => {
            " - Namespaces are a Consul Enterprise feature"
        }
        JsonError::UnknownField(name) if name.eq_ignore_ascii_case("Partition") => {
            " - Partitions are a Consul Enterprise feature"
        }
        _ => "",
    };
    Failure::bad_request(format!("Request decode failed: {error}{about_enterprise}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enterprise_fields_named() {
        let failure = undecodable(JsonError::UnknownField("Namespace".into()));
        let text = "json: unknown field \\\"Namespace\\\" - Namespaces are a Consul Enterprise feature";
        assert!(format!("{failure:?}").contains(text), "{failure:?}");
    }
}
