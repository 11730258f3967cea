//! The bootstrap, the settings of the cluster, questions about the own rights, and the agent's own
//! tokens.

use super::super::super::answer::{self, Failure};
use super::super::super::body::Body;
use super::super::super::call::{Call, ReadOptions};
use super::super::misfit;
use super::{decoded, fresh_id, propose, shape, token};
use crate::go::json::{Object, first_value};
use http::{Method, Response};
use lockmesh_protocol::acl::record::GLOBAL_MANAGEMENT;
use lockmesh_protocol::acl::{
    Access, AclChange, AclCommand, AclMode, AclSettings, DefaultPolicy, Links, NewToken, Resource,
};
use lockmesh_protocol::query::{Query, Rows};
use lockmesh_protocol::reply::{Applied, Reply};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The maximum number of questions about rights in a request.
const MAX_QUESTIONS: usize = 64;

/// The body of a bootstrap.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields, default)]
struct Bootstrap {
    bootstrap_secret: String,
}

/// Creates the first management token, or another one if a file of the leader permits it.
pub(in super::super) async fn bootstrap(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let Bootstrap { bootstrap_secret } = match body.trim_ascii().is_empty() {
        true => Bootstrap::default(),
        false => serde_json::from_slice(&body)
            .map_err(|error| Failure::bad_request(format!("Request decoding failed: {error}")))?,
    };
    let new = NewToken {
        accessor: fresh_id()?,
        secret: if bootstrap_secret.is_empty() { fresh_id()? } else { bootstrap_secret },
        description: "Bootstrap Token (Global Management)".into(),
        links: Links { policies: vec![GLOBAL_MANAGEMENT.into()], ..Links::default() },
        is_local: false,
        expires_at: None,
    };
    let secret = new.secret.clone();
    let command = AclCommand::Bootstrap(Box::new(new), None);
    let Applied { index, reply } = propose(call, command).await?;
    let Reply::Token(created) = reply else { return Err(misfit::wrong_reply(&reply)) };
    // Only the new token may read the name of its policy.
    let caller = crate::acl::caller(&secret).unwrap_or_default();
    let names = token::names_for(&call.api.upstream.for_caller(caller), &created).await;
    let shape = shape::token(&created, &names).of_bootstrap();
    Ok(answer::with_write_index(answer::json(&shape, call.layout()), index))
}

/// No table is copied from another datacenter.
pub(in super::super) fn replication(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let shape = json!({
        "Enabled": false,
        "Running": false,
        "SourceDatacenter": "",
        "ReplicationType": "",
        "ReplicatedIndex": 0,
        "ReplicatedRoleIndex": 0,
        "ReplicatedTokenIndex": 0,
        "LastSuccess": shape::NEVER,
        "LastError": shape::NEVER,
    });
    Ok(answer::json(&shape, call.layout()))
}

/// The settings as clients read and change them.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Settings {
    mode: Option<AclMode>,
    default_policy: Option<DefaultPolicy>,
    key_list_policy: Option<bool>,
    session_ownership: Option<bool>,
    peer_management: Option<bool>,
    /// Only shown.
    bootstrap_index: Option<u64>,
}

/// Shows the settings of the cluster, or changes those in the body.
pub(in super::super) async fn settings(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    if call.method() == Method::PUT {
        return change_settings(call, body).await;
    }
    let options = call.read_options()?;
    let answer = call.read(Query::AclSettings, options, Some(answer::MetaKind::Plain)).await?;
    let Rows::AclSettings(settings) = &answer.rows else { return Err(misfit::wrong_rows()) };
    let shape = Settings {
        mode: Some(settings.mode),
        default_policy: Some(settings.default_policy),
        key_list_policy: Some(settings.key_list_policy),
        session_ownership: Some(settings.session_ownership),
        peer_management: Some(settings.peer_management),
        bootstrap_index: Some(settings.bootstrap_index.0),
    };
    Ok(answer::with_meta(answer::json(&shape, call.layout()), &answer, answer::MetaKind::Plain))
}

async fn change_settings(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    let wrong = |error| {
        let form = "send some of {\"Mode\": \"off|log|enforce\", \"DefaultPolicy\": \"allow|deny\", \
                    \"KeyListPolicy\": BOOL, \"SessionOwnership\": BOOL, \"PeerManagement\": BOOL}";
        Failure::bad_request(format!("Request decode failed: {error}; {form}"))
    };
    let body = call.small_body(body).await?;
    let wanted: Settings = serde_json::from_slice(&body).map_err(wrong)?;
    let answer = call.read(Query::AclSettings, ReadOptions::default(), None).await?;
    let Rows::AclSettings(before) = answer.rows.clone() else { return Err(misfit::wrong_rows()) };
    let change = AclChange {
        mode: wanted.mode,
        default_policy: wanted.default_policy,
        key_list_policy: wanted.key_list_policy,
        session_ownership: wanted.session_ownership,
        peer_management: wanted.peer_management,
        datacenter: call.api.identity.datacenter.clone(),
    };
    let applied = propose(call, AclCommand::Configure(change)).await?;
    let settings = AclSettings {
        mode: wanted.mode.unwrap_or(before.mode),
        default_policy: wanted.default_policy.unwrap_or(before.default_policy),
        ..before
    };
    // The next request of this client is judged by them.
    call.api.acl.note(settings);
    Ok(answer::with_write_index(answer::json(&true, call.layout()), applied.index))
}

/// A question about a right, and its answer.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Question {
    resource: String,
    access: String,
    segment: String,
    allow: bool,
}

/// Answers questions about the rights of the request's token.
pub(in super::super) async fn authorize(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    let mut questions = decoded(call, body, "Request", |value| {
        let question = |value| {
            let object = Object::new("ACLAuthorizationRequest", value)?;
            object.refuse_unknown(&["Resource", "Access", "Segment", "Allow"])?;
            let [resource, access, segment] =
                ["Resource", "Access", "Segment"].map(|name| object.string(name));
            let (resource, access, segment) = (resource?.into(), access?.into(), segment?.into());
            Ok(Question { resource, access, segment, allow: false })
        };
        value
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default()
            .iter()
            .map(question)
            .collect::<Result<Vec<_>, _>>()
    })
    .await?;
    if questions.len() > MAX_QUESTIONS {
        let text = format!("Refusing to process more than {MAX_QUESTIONS} authorizations at once");
        return Err(Failure::bad_request(text));
    }
    let judgement = call.judgement().await?;
    for question in &mut questions {
        let (resource, access) = named(question)?;
        question.allow = judgement.permits(resource, access, &question.segment);
    }
    Ok(answer::json(&questions, call.layout()))
}

fn named(Question { resource, access, .. }: &Question) -> Result<(Resource, Access), Failure> {
    let unknown_resource = || Failure::refused(format!("Invalid ACL resource requested: {resource:?}"));
    let unknown_access =
        || Failure::refused(format!("Invalid access level for {resource} resource: {access:?}"));
    let known = Resource::named(resource).ok_or_else(unknown_resource)?;
    let access = Access::named(access).filter(|access| *access != Access::List || known == Resource::Key);
    Ok((known, access.ok_or_else(unknown_access)?))
}

/// Replaces a token of this agent.
pub(in super::super) async fn agent_token(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    call.check_place()?;
    let body = call.small_body(body).await?;
    let parsed = first_value(&body).and_then(|value| {
        let object = Object::new("TokenUpdate", &value)?;
        object.refuse_unknown(&["Token"])?;
        object.string("Token").map(str::to_owned)
    });
    let secret = parsed.map_err(|error| Failure::bad_request(format!("Request decode failed: {error}")))?;
    let (acl, name) = (call.api.acl.clone(), call.tail.to_owned());
    let replaced = tokio::task::spawn_blocking(move || acl.tokens.replace(&name, &secret)).await;
    match replaced.map_err(|_| Failure::not_done("the agent is shutting down"))? {
        Ok(true) => Ok(answer::nothing()),
        Ok(false) => Err(Failure::not_found(format!("Token {:?} is unknown", call.tail))),
        Err(error) => Err(Failure::unknown(format!(
            "the token counts until this agent stops, but cannot be kept in its data folder: {error}"
        ))),
    }
}
