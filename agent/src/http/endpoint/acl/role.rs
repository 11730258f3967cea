//! `/v1/acl/role…`: roles.

use super::super::super::answer::{self, Failure, MetaKind};
use super::super::super::body::Body;
use super::super::super::call::{Call, ReadOptions};
use super::super::super::listing::{Form, Listing, Piece};
use super::super::misfit;
use super::body::{self, RoleBody};
use super::{audited, check_named, decoded, delete, fresh_id, propose, read_row, same_id, shape, shown};
use http::{Method, Response};
use lockmesh_protocol::acl::{AclCommand, NewRole, Role};
use lockmesh_protocol::query::{LinkNames, Query, Rows};
use lockmesh_protocol::reply::{Applied, Reply};
use std::sync::Arc;

pub(in super::super) async fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let options = call.read_options()?;
    let policy = call.params.non_empty("policy").map(str::to_owned);
    let first = call.read_list(Query::Roles(None), options, Some(MetaKind::Plain)).await?;
    let form = Form { layout: call.layout(), meta: MetaKind::Plain, is_costly: false };
    Listing::from(first)
        .respond(form, move |rows, layout| {
            let Rows::Roles(rows) = rows else { return Err(misfit::wrong_rows()) };
            let links = |role: &Role, policy: &String| {
                role.links.policies.iter().any(|id| id.eq_ignore_ascii_case(policy))
            };
            let selected =
                rows.iter().filter(|(role, _)| policy.as_ref().is_none_or(|policy| links(role, policy)));
            Piece::array(selected.map(|(role, names)| Ok(shape::role(role, names))), layout)
        })
        .await
}

/// Creates a role.
pub(in super::super) async fn create(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    audited(call, async {
        let body = decoded(call, body, "Role", body::role).await?;
        if !body.id.is_empty() {
            return Err(Failure::bad_request("Cannot specify the ID when creating a new role"));
        }
        written(call, AclCommand::CreateRole(Box::new(new_role(fresh_id()?, body)))).await
    })
    .await
}

/// One role: read, replaced or deleted.
pub(in super::super) async fn one(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    check_named(call, "role ID")?;
    match *call.method() {
        Method::GET => read(call).await,
        Method::PUT => {
            audited(call, async {
                let body = decoded(call, body, "Role", body::role).await?;
                let new = new_role(same_id(call, &body.id, "Role")?, body);
                written(call, AclCommand::UpdateRole(Box::new(new))).await
            })
            .await
        }
        _ => {
            call.check_place()?;
            delete(call, "role", AclCommand::DeleteRole(call.tail.into())).await
        }
    }
}

/// The role of a name.
pub(in super::super) async fn named(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    check_named(call, "role Name")?;
    read(call).await
}

async fn read(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    let answer = read_row(call, "role", Query::Roles).await?;
    shown(call, &answer, |rows| first(rows).map(|(role, names)| shape::role(role, names)))
}

fn first(rows: &Rows) -> Option<&(Arc<Role>, LinkNames)> {
    let Rows::Roles(rows) = rows else { return None };
    rows.first()
}

fn new_role(id: String, body: RoleBody) -> NewRole {
    let RoleBody { name, description, links, .. } = body;
    NewRole { id, name, description, links }
}

async fn written(call: &Call<'_>, command: AclCommand) -> Result<Response<Body>, Failure> {
    let Applied { index, reply } = propose(call, command).await?;
    let Reply::Role(role) = reply else { return Err(misfit::wrong_reply(&reply)) };
    let shape = shape::role(&role, &names(call, &role).await);
    Ok(answer::with_write_index(answer::json(&shape, call.layout()), index))
}

/// Returns the names of what a new role links. It is created, so a failure only leaves them out.
async fn names(call: &Call<'_>, role: &Role) -> LinkNames {
    if role.links.policies.is_empty() {
        return LinkNames::default();
    }
    let read = call.try_read(Query::Roles(Some(role.id.clone())), ReadOptions::default()).await;
    read.ok().and_then(|answer| first(&answer.rows).map(|(_, names)| names.clone())).unwrap_or_default()
}
