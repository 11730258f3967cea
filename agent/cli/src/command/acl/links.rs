//! The options for the policies, roles and identities of a token or a role, and their layout.

use super::super::arguments::ValueError;
use super::super::error::CliError;
use super::super::output::printable;
use super::{policy_id, role_id};
use lockmesh_client::Acl;
use lockmesh_client::shape::acl::{Link, Links, NodeIdentity, ServiceIdentity, TemplatedPolicy};
use std::fmt::Write;

// The links of a token or a role. No doc comment, which would become the help of the command.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct LinkArgs {
    /// Policy; repeatable
    #[arg(long = "policy-name", value_name = "NAME")]
    policy_names: Vec<String>,
    /// Policy, by its ID or a unique prefix of it; repeatable
    #[arg(long = "policy-id", value_name = "ID")]
    policy_ids: Vec<String>,
    /// Service to register and its datacenters, as NAME or NAME:DC1,DC2; repeatable
    #[arg(long = "service-identity", value_name = "SERVICE", value_parser = service_identity)]
    service_identities: Vec<ServiceIdentity>,
    /// Node to register and its datacenter, as NAME:DC; repeatable
    #[arg(long = "node-identity", value_name = "NODE", value_parser = node_identity)]
    node_identities: Vec<NodeIdentity>,
    /// Built-in template, such as builtin/service
    #[arg(long, value_name = "NAME")]
    templated_policy: Option<String>,
    /// Variable of the template, such as name:web
    #[arg(long, value_name = "NAME:VALUE", value_parser = variable, requires = "templated_policy")]
    var: Vec<(String, String)>,
}

// The roles of a token.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct RoleArgs {
    /// Role; repeatable
    #[arg(long = "role-name", value_name = "NAME")]
    role_names: Vec<String>,
    /// Role, by its ID or a unique prefix of it; repeatable
    #[arg(long = "role-id", value_name = "ID")]
    role_ids: Vec<String>,
}

// The links that are added to those of a token.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct AppendArgs {
    /// Policy to add; repeatable
    #[arg(long = "append-policy-name", value_name = "NAME", conflicts_with_all = ["policy_names", "policy_ids"])]
    append_policy_names: Vec<String>,
    /// Policy to add, by its ID or a unique prefix of it; repeatable
    #[arg(long = "append-policy-id", value_name = "ID", conflicts_with_all = ["policy_names", "policy_ids"])]
    append_policy_ids: Vec<String>,
    /// Role to add; repeatable
    #[arg(long = "append-role-name", value_name = "NAME", conflicts_with_all = ["role_names", "role_ids"])]
    append_role_names: Vec<String>,
    /// Role to add, by its ID or a unique prefix of it; repeatable
    #[arg(long = "append-role-id", value_name = "ID", conflicts_with_all = ["role_names", "role_ids"])]
    append_role_ids: Vec<String>,
}

impl LinkArgs {
    /// The links; those of roles are none.
    pub(super) async fn links(self, acl: Acl<'_>) -> Result<Links, CliError> {
        let template = |template_name| TemplatedPolicy {
            template_name,
            template_variables: self.var.into_iter().collect(),
            datacenters: Vec::new(),
        };
        Ok(Links {
            policies: policies(self.policy_ids, self.policy_names, acl).await?,
            roles: Vec::new(),
            service_identities: self.service_identities,
            node_identities: self.node_identities,
            templated_policies: self.templated_policy.map(template).into_iter().collect(),
        })
    }
}

impl RoleArgs {
    /// The roles.
    pub(super) async fn links(self, acl: Acl<'_>) -> Result<Vec<Link>, CliError> {
        roles(self.role_ids, self.role_names, acl).await
    }
}

impl AppendArgs {
    /// The policies and roles to add.
    pub(super) async fn links(self, acl: Acl<'_>) -> Result<Links, CliError> {
        Ok(Links {
            policies: policies(self.append_policy_ids, self.append_policy_names, acl).await?,
            roles: roles(self.append_role_ids, self.append_role_names, acl).await?,
            ..Links::default()
        })
    }
}

async fn policies(ids: Vec<String>, names: Vec<String>, acl: Acl<'_>) -> Result<Vec<Link>, CliError> {
    let mut links: Vec<Link> = names.into_iter().map(named).collect();
    for id in ids {
        links.push(Link { id: policy_id(acl, &id).await?, name: String::new() });
    }
    Ok(links)
}

async fn roles(ids: Vec<String>, names: Vec<String>, acl: Acl<'_>) -> Result<Vec<Link>, CliError> {
    let mut links: Vec<Link> = names.into_iter().map(named).collect();
    for id in ids {
        links.push(Link { id: role_id(acl, &id).await?, name: String::new() });
    }
    Ok(links)
}

fn named(name: String) -> Link {
    Link { id: String::new(), name }
}

/// The known links, with each kind that is given replaced.
pub(super) fn replaced(known: Links, given: Links) -> Links {
    fn either<T>(known: Vec<T>, given: Vec<T>) -> Vec<T> {
        if given.is_empty() { known } else { given }
    }
    Links {
        policies: either(known.policies, given.policies),
        roles: either(known.roles, given.roles),
        service_identities: either(known.service_identities, given.service_identities),
        node_identities: either(known.node_identities, given.node_identities),
        templated_policies: either(known.templated_policies, given.templated_policies),
    }
}

/// The known links and those that are given. The agent collapses duplicates.
pub(super) fn merged(mut known: Links, given: Links) -> Links {
    known.policies.extend(given.policies);
    known.roles.extend(given.roles);
    known.service_identities.extend(given.service_identities);
    known.node_identities.extend(given.node_identities);
    known.templated_policies.extend(given.templated_policies);
    known
}

/// One line for each link, below a heading for each kind.
pub(super) fn shown(links: &Links, indent: &str) -> String {
    let mut text = String::new();
    let mut part = |heading: &str, items: Vec<String>| {
        if !items.is_empty() {
            let items: String =
                items.iter().map(|item| format!("{indent}   {}\n", printable(item))).collect();
            write!(text, "{indent}{heading}:\n{items}").expect("writing to a string cannot fail");
        }
    };
    let link = |link: &Link| format!("{} - {}", link.id, link.name);
    let all = |datacenters: &[String]| match datacenters {
        [] => "all".to_owned(),
        some => some.join(", "),
    };
    let service =
        |it: &ServiceIdentity| format!("{} (Datacenters: {})", it.service_name, all(&it.datacenters));
    let node = |it: &NodeIdentity| format!("{} (Datacenter: {})", it.node_name, it.datacenter);
    let template = |it: &TemplatedPolicy| {
        let variables: String =
            it.template_variables.iter().map(|(name, value)| format!(" {name}:{value}")).collect();
        format!("{}{variables} (Datacenters: {})", it.template_name, all(&it.datacenters))
    };
    part("Policies", links.policies.iter().map(link).collect());
    part("Roles", links.roles.iter().map(link).collect());
    part("Service Identities", links.service_identities.iter().map(service).collect());
    part("Node Identities", links.node_identities.iter().map(node).collect());
    part("Templated Policies", links.templated_policies.iter().map(template).collect());
    text
}

fn service_identity(text: &str) -> Result<ServiceIdentity, ValueError> {
    let (name, datacenters) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let datacenters = datacenters.iter().flat_map(|list| list.split(',')).map(str::to_owned);
    Ok(ServiceIdentity { service_name: name.into(), datacenters: datacenters.collect() })
}

fn node_identity(text: &str) -> Result<NodeIdentity, ValueError> {
    let (node, datacenter) = text.split_once(':').ok_or(ValueError::NodeIdentity)?;
    Ok(NodeIdentity { node_name: node.into(), datacenter: datacenter.into() })
}

fn variable(text: &str) -> Result<(String, String), ValueError> {
    let (name, value) = text.split_once(':').ok_or(ValueError::Variable)?;
    Ok((name.into(), value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(names: &[&str], service: &str) -> Links {
        let service_identities = vec![service_identity(service).expect("it is good")];
        let policies = names.iter().map(|name| named((*name).into())).collect();
        Links { policies, service_identities, ..Links::default() }
    }

    #[test]
    fn identities_parsed_like_consul() {
        let (all, some) = (service_identity("web"), service_identity("web:dc1,dc2"));
        assert!(all.is_ok_and(|it| it.service_name == "web" && it.datacenters.is_empty()));
        assert!(some.is_ok_and(|it| it.service_name == "web" && it.datacenters == ["dc1", "dc2"]));
        let node = node_identity("n1:dc1").expect("it is good");
        assert_eq!((node.node_name.as_str(), node.datacenter.as_str()), ("n1", "dc1"));
        assert_eq!(node_identity("n1"), Err(ValueError::NodeIdentity));
        assert_eq!(variable("name"), Err(ValueError::Variable));
    }

    #[test]
    fn given_links_replace_or_extend() {
        let (known, given) = (links(&["a"], "web"), links(&["b"], "db"));
        let kept = replaced(known.clone(), Links::default());
        assert_eq!(kept, known);
        assert_eq!(replaced(known.clone(), given.clone()), given);
        let both = merged(known, given);
        assert_eq!((both.policies.len(), both.service_identities.len()), (2, 2));
    }

    #[test]
    fn links_shown_below_headings() {
        let mut both = links(&[], "web:dc1");
        both.policies.push(Link { id: "p1".into(), name: "jobs".into() });
        both.node_identities.push(NodeIdentity { node_name: "n1".into(), datacenter: "dc1".into() });
        let expected = " Policies:\n    p1 - jobs\n Service Identities:\n    web (Datacenters: dc1)\n \
                        Node Identities:\n    n1 (Datacenter: dc1)\n";
        assert_eq!(shown(&both, " "), expected);
        assert_eq!(shown(&Links::default(), ""), "");
    }
}
