//! `/v1/acl/templated-polic…`: the built-in templates of policies, which the agent knows itself.

use super::super::super::answer::{self, Failure};
use super::super::super::body::Body;
use super::super::super::call::Call;
use super::{decoded, shape};
use crate::go::json::Object;
use http::Response;
use lockmesh_protocol::acl::rights::{TEMPLATES, template_rules};
use lockmesh_protocol::acl::{Access, Level, Resource, Rule, TemplatedPolicy};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The place of the name in the text of a template, as in Consul's.
const NAME: &str = "{{.Name}}";

/// A template.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Template {
    template_name: &'static str,
    schema: String,
    template: String,
    description: String,
}

pub(in super::super) async fn list(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    check(call).await?;
    let templates = TEMPLATES.into_iter().map(|(name, has_name)| (name, template(name, has_name)));
    Ok(answer::json(&templates.collect::<BTreeMap<_, _>>(), call.layout()))
}

/// The template of a name.
pub(in super::super) async fn named(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    check(call).await?;
    let (name, has_name) = known(call)?;
    Ok(answer::json(&template(name, has_name), call.layout()))
}

/// Shows the policy that a template becomes with the name in the body.
pub(in super::super) async fn preview(call: &Call<'_>, body: Body) -> Result<Response<Body>, Failure> {
    check(call).await?;
    let (template, has_name) = known(call)?;
    let name = match has_name {
        true => {
            decoded(call, body, "ACLTemplatedPolicyVariables", |value| {
                let object = Object::new("ACLTemplatedPolicyVariables", value)?;
                object.refuse_unknown(&["Name"])?;
                object.string("Name").map(str::to_owned)
            })
            .await?
        }
        false => String::new(),
    };
    if has_name && name.is_empty() {
        return Err(Failure::bad_request("validation error for templated policy: (root): name is required"));
    }
    let rules = text_of(template, &name);
    let hash = shape::hash(&rules);
    let policy = json!({
        "ID": "",
        "Name": format!("synthetic-policy-{hash}"),
        "Description": format!("synthetic policy generated from templated policy: {template}"),
        "Rules": rules,
        "Hash": hash,
        "CreateIndex": 0,
        "ModifyIndex": 0,
    });
    Ok(answer::json(&policy, call.layout()))
}

async fn check(call: &Call<'_>) -> Result<(), Failure> {
    call.check_place()?;
    call.judgement().await?.check(Resource::Acl, Access::Read, "")
}

fn known(call: &Call<'_>) -> Result<(&'static str, bool), Failure> {
    let found = TEMPLATES.into_iter().find(|(name, _)| *name == call.tail);
    found.ok_or_else(|| Failure::bad_request(format!("Invalid templated policy Name: {}", call.tail)))
}

fn template(name: &'static str, has_name: bool) -> Template {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "$ref": "#/definitions/min-length-one"}},
        "required": ["name"],
        "definitions": {"min-length-one": {"type": "string", "minLength": 1}},
    });
    Template {
        template_name: name,
        schema: if has_name { schema.to_string() } else { String::new() },
        template: text_of(name, NAME),
        description: format!("Built-in rules of {}.", name.trim_start_matches("builtin/")),
    }
}

/// Returns the rules of a template as the text of a policy.
fn text_of(template: &str, name: &str) -> String {
    let policy = TemplatedPolicy { template: template.into(), name: name.into(), datacenters: Vec::new() };
    let mut text = String::new();
    for rule in template_rules(&policy) {
        let level = Level::WORDS.into_iter().find(|(_, level)| *level == rule.level);
        let level = level.map_or("", |(word, _)| word);
        let Rule { resource, is_prefix, label, .. } = rule;
        let suffix = if is_prefix { "_prefix" } else { "" };
        // Writing to a string does not fail.
        let _ = match resource.is_single() {
            true => writeln!(text, "{resource} = \"{level}\""),
            false => writeln!(text, "{resource}{suffix} \"{label}\" {{\n  policy = \"{level}\"\n}}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockmesh_agent_core::acl_rules;
    use lockmesh_protocol::acl::Rules;

    #[test]
    fn template_texts_parse_to_rules() {
        for (template, _) in TEMPLATES {
            let policy =
                TemplatedPolicy { template: template.into(), name: "web".into(), datacenters: Vec::new() };
            let parsed = acl_rules::parse(&text_of(template, "web")).expect("valid rules");
            assert_eq!(parsed, Rules::from(template_rules(&policy)), "{template}");
        }
    }
}
