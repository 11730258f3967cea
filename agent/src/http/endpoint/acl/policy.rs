//! `/v1/acl/polic…`: policies.

use super::super::super::answer::{self, Failure, MetaKind};
use super::super::super::body::Body;
use super::super::super::call::Call;
use super::super::super::listing::{Form, Listing, Piece};
use super::super::misfit;
use super::body::{self, PolicyBody};
use super::{audited, check_named, decoded, delete, fresh_id, propose, read_row, same_id, shape, shown};
use http::{Method, Response};
use lockmesh_agent_core::acl_rules;
use lockmesh_protocol::acl::{AclCommand, NewPolicy};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::reply::{Applied, Reply};

pub(in super::super) async fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let first = call.read_list(Query::Policies(None), options, Some(MetaKind::Plain)).await?;
    let form = Form { layout: call.layout(), meta: MetaKind::Plain, is_costly: false };
    Listing::from(first)
        .respond(form, |rows, layout| {
            let Rows::Policies(rows) = rows else { return Err(misfit::wrong_rows()) };
            Piece::array(rows.iter().map(|policy| Ok(shape::listed_policy(policy))), layout)
        })
        .await
}

/// Creates a policy.
pub(in super::super) async fn create(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    audited(call, async {
        let body = decoded(call, body, "Policy", body::policy).await?;
        if !body.id.is_empty() {
            return Err(Failure::bad_request("Cannot specify the ID when creating a new policy"));
        }
        let new = new_policy(fresh_id()?, body)?;
        written(call, AclCommand::CreatePolicy(Box::new(new))).await
    })
    .await
}

/// One policy: read, replaced or deleted.
pub(in super::super) async fn one(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    check_named(call, "policy ID")?;
    match *call.method() {
        Method::GET => read(call).await,
        Method::PUT => {
            audited(call, async {
                let body = decoded(call, body, "Policy", body::policy).await?;
                let new = new_policy(same_id(call, &body.id, "Policy")?, body)?;
                written(call, AclCommand::UpdatePolicy(Box::new(new))).await
            })
            .await
        }
        _ => {
            call.check_place()?;
            delete(call, "policy", AclCommand::DeletePolicy(call.tail.into())).await
        }
    }
}

/// The policy of a name.
pub(in super::super) async fn named(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    check_named(call, "policy Name")?;
    read(call).await
}

async fn read(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let answer = read_row(call, "policy", Query::Policies).await?;
    shown(call, &answer, |rows| {
        let Rows::Policies(policies) = rows else { return None };
        policies.first().map(|policy| shape::policy(policy))
    })
}

fn new_policy(id: String, body: PolicyBody) -> Result<NewPolicy, Failure> {
    let PolicyBody { name, description, text, datacenters, .. } = body;
    let rules = acl_rules::parse(&text).map_err(|error| Failure::refused(error.to_string()))?;
    Ok(NewPolicy { id, name, description, text, rules, datacenters })
}

async fn written(call: &Call<'_>, command: AclCommand) -> Result<Response<Body>, Failure> {
    let Applied { index, reply } = propose(call, command).await?;
    let Reply::Policy(policy) = reply else { return Err(misfit::wrong_reply(&reply)) };
    Ok(answer::with_write_index(answer::json(&shape::policy(&policy), call.layout()), index))
}
