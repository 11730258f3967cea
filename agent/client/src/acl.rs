//! Requests about access control lists: tokens, policies, roles, and Lockmesh's settings of them.

use crate::client::{Answer, Client, Target};
use crate::connection::Verb;
use crate::error::Error;
use crate::read::Read;
use crate::shape::acl::{
    AclChange, AclSettings, AuthMethod, BindingRule, NewAuthMethod, NewBindingRule, NewClone, NewPolicy,
    NewRole, NewToken, Permission, Policy, Role, Token,
};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Requests about access control lists. See [`Client::acl`].
///
/// All of them except [`Acl::bootstrap`], [`Acl::own_token`] and [`Acl::authorize`] need a token
/// with the right `acl:read` or `acl:write`; the settings need `operator:read` or `operator:write`.
#[derive(Clone, Copy, Debug)]
pub struct Acl<'a> {
    client: &'a Client,
}

impl Client {
    /// Returns the requests about access control lists.
    pub fn acl(&self) -> Acl<'_> {
        Acl { client: self }
    }
}

impl Acl<'_> {
    /// Creates the first management token, and returns it with its secret. `secret` is that
    /// secret, a UUID; `None` to let the agent choose one.
    ///
    /// # Errors
    /// [`Error::Refused`] if there was a bootstrap before, with the index for a reset. Unless
    /// [`Error::certainly_not_done`] is `true`, the token may exist, and only a chosen secret is
    /// known.
    pub async fn bootstrap(&self, secret: Option<&str>) -> Result<Token, Error> {
        let target = Target::new("/v1/acl/bootstrap");
        match secret {
            Some(secret) => self.put(target, &serde_json::json!({ "BootstrapSecret": secret })).await,
            None => {
                let reply = self.client.write(Verb::Put, target, Bytes::new()).await?;
                self.client.parse(&reply)
            }
        }
    }

    /// Creates a token, and returns it with its secret.
    ///
    /// # Errors
    /// [`Error::Refused`] describes the invalid field. Unless [`Error::certainly_not_done`] is
    /// `true`, the token may exist: see [`Acl::tokens`].
    pub async fn create_token(&self, token: &NewToken) -> Result<Token, Error> {
        self.put(Target::new("/v1/acl/token"), token).await
    }

    /// Replaces the description and all links of a token.
    ///
    /// # Errors
    /// As [`Acl::create_token`]. Updating it again is safe.
    pub async fn update_token(&self, accessor: &str, token: &NewToken) -> Result<Token, Error> {
        self.put(Target::new("/v1/acl/token/").name(accessor), token).await
    }

    /// Creates a token with the links of another one. An empty description is that of the other.
    ///
    /// # Errors
    /// As [`Acl::create_token`].
    pub async fn clone_token(&self, accessor: &str, description: &str) -> Result<Token, Error> {
        let body = NewClone { description: description.to_owned() };
        self.put(Target::new("/v1/acl/token/").name(accessor).name("/clone"), &body).await
    }

    /// Returns the token with this accessor id.
    ///
    /// # Errors
    /// [`Error::Refused`] with status 404 if there is none. A read changes nothing. Retry if
    /// [`Error::is_transient`] returns `true`.
    pub async fn token(&self, accessor: &str, read: &Read) -> Result<Token, Error> {
        self.read_one(Target::new("/v1/acl/token/").name(accessor), read).await
    }

    /// Returns the token that this client sends.
    ///
    /// # Errors
    /// [`Error::Refused`] with status 401 if access control is off. A read changes nothing. Retry
    /// if [`Error::is_transient`] returns `true`.
    pub async fn own_token(&self, read: &Read) -> Result<Token, Error> {
        self.read_one(Target::new("/v1/acl/token/self"), read).await
    }

    /// Returns all tokens.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn tokens(&self, read: &Read) -> Result<Answer<Vec<Token>>, Error> {
        self.client.read(Target::new("/v1/acl/tokens").read(read)).await
    }

    /// Deletes a token. An unknown one is a success.
    ///
    /// # Errors
    /// [`Error::Refused`] for the anonymous token and for the client's own one. Deleting it again
    /// is safe.
    pub async fn delete_token(&self, accessor: &str) -> Result<(), Error> {
        self.delete(Target::new("/v1/acl/token/").name(accessor)).await
    }

    /// Creates a policy.
    ///
    /// # Errors
    /// [`Error::Refused`] describes the invalid field or rule. Unless
    /// [`Error::certainly_not_done`] is `true`, the policy may exist: see [`Acl::policy_by_name`].
    pub async fn create_policy(&self, policy: &NewPolicy) -> Result<Policy, Error> {
        self.put(Target::new("/v1/acl/policy"), policy).await
    }

    /// Replaces a policy.
    ///
    /// # Errors
    /// As [`Acl::create_policy`]. Updating it again is safe.
    pub async fn update_policy(&self, id: &str, policy: &NewPolicy) -> Result<Policy, Error> {
        self.put(Target::new("/v1/acl/policy/").name(id), policy).await
    }

    /// Returns the policy with this id.
    ///
    /// # Errors
    /// As [`Acl::token`].
    pub async fn policy(&self, id: &str, read: &Read) -> Result<Policy, Error> {
        self.read_one(Target::new("/v1/acl/policy/").name(id), read).await
    }

    /// Returns the policy with this name.
    ///
    /// # Errors
    /// As [`Acl::token`].
    pub async fn policy_by_name(&self, name: &str, read: &Read) -> Result<Policy, Error> {
        self.read_one(Target::new("/v1/acl/policy/name/").name(name), read).await
    }

    /// Returns all policies, without their rules.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn policies(&self, read: &Read) -> Result<Answer<Vec<Policy>>, Error> {
        self.client.read(Target::new("/v1/acl/policies").read(read)).await
    }

    /// Deletes a policy and all links to it. An unknown one is a success.
    ///
    /// # Errors
    /// [`Error::Refused`] for a built-in policy. Deleting it again is safe.
    pub async fn delete_policy(&self, id: &str) -> Result<(), Error> {
        self.delete(Target::new("/v1/acl/policy/").name(id)).await
    }

    /// Creates a role.
    ///
    /// # Errors
    /// [`Error::Refused`] describes the invalid field. Unless [`Error::certainly_not_done`] is
    /// `true`, the role may exist: see [`Acl::role_by_name`].
    pub async fn create_role(&self, role: &NewRole) -> Result<Role, Error> {
        self.put(Target::new("/v1/acl/role"), role).await
    }

    /// Replaces a role.
    ///
    /// # Errors
    /// As [`Acl::create_role`]. Updating it again is safe.
    pub async fn update_role(&self, id: &str, role: &NewRole) -> Result<Role, Error> {
        self.put(Target::new("/v1/acl/role/").name(id), role).await
    }

    /// Returns the role with this id.
    ///
    /// # Errors
    /// As [`Acl::token`].
    pub async fn role(&self, id: &str, read: &Read) -> Result<Role, Error> {
        self.read_one(Target::new("/v1/acl/role/").name(id), read).await
    }

    /// Returns the role with this name.
    ///
    /// # Errors
    /// As [`Acl::token`].
    pub async fn role_by_name(&self, name: &str, read: &Read) -> Result<Role, Error> {
        self.read_one(Target::new("/v1/acl/role/name/").name(name), read).await
    }

    /// Returns all roles.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn roles(&self, read: &Read) -> Result<Answer<Vec<Role>>, Error> {
        self.client.read(Target::new("/v1/acl/roles").read(read)).await
    }

    /// Deletes a role and all links to it. An unknown one is a success.
    ///
    /// # Errors
    /// Deleting it again is safe.
    pub async fn delete_role(&self, id: &str) -> Result<(), Error> {
        self.delete(Target::new("/v1/acl/role/").name(id)).await
    }

    /// Creates an auth method.
    ///
    /// # Errors
    /// [`Error::Refused`] describes the invalid field, such as an unsupported type. Creating it
    /// again is safe.
    pub async fn create_auth_method(&self, method: &NewAuthMethod) -> Result<AuthMethod, Error> {
        self.put(Target::new("/v1/acl/auth-method"), method).await
    }

    /// Replaces an auth method; its name cannot change.
    ///
    /// # Errors
    /// As [`Acl::create_auth_method`].
    pub async fn update_auth_method(&self, method: &NewAuthMethod) -> Result<AuthMethod, Error> {
        self.put(Target::new("/v1/acl/auth-method/").name(&method.name), method).await
    }

    /// Returns the auth method with this name.
    ///
    /// # Errors
    /// As [`Acl::token`].
    pub async fn auth_method(&self, name: &str, read: &Read) -> Result<AuthMethod, Error> {
        self.read_one(Target::new("/v1/acl/auth-method/").name(name), read).await
    }

    /// Returns all auth methods.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn auth_methods(&self, read: &Read) -> Result<Answer<Vec<AuthMethod>>, Error> {
        self.client.read(Target::new("/v1/acl/auth-methods").read(read)).await
    }

    /// Deletes an auth method and its binding rules. An unknown one is a success.
    ///
    /// # Errors
    /// Deleting it again is safe.
    pub async fn delete_auth_method(&self, name: &str) -> Result<(), Error> {
        self.delete(Target::new("/v1/acl/auth-method/").name(name)).await
    }

    /// Creates a binding rule.
    ///
    /// # Errors
    /// [`Error::Refused`] describes the invalid field. Unless [`Error::certainly_not_done`] is
    /// `true`, the rule may exist: see [`Acl::binding_rules`].
    pub async fn create_binding_rule(&self, rule: &NewBindingRule) -> Result<BindingRule, Error> {
        self.put(Target::new("/v1/acl/binding-rule"), rule).await
    }

    /// Replaces a binding rule.
    ///
    /// # Errors
    /// As [`Acl::create_binding_rule`]. Updating it again is safe.
    pub async fn update_binding_rule(&self, id: &str, rule: &NewBindingRule) -> Result<BindingRule, Error> {
        self.put(Target::new("/v1/acl/binding-rule/").name(id), rule).await
    }

    /// Returns the binding rule with this id.
    ///
    /// # Errors
    /// As [`Acl::token`].
    pub async fn binding_rule(&self, id: &str, read: &Read) -> Result<BindingRule, Error> {
        self.read_one(Target::new("/v1/acl/binding-rule/").name(id), read).await
    }

    /// Returns all binding rules.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn binding_rules(&self, read: &Read) -> Result<Answer<Vec<BindingRule>>, Error> {
        self.client.read(Target::new("/v1/acl/binding-rules").read(read)).await
    }

    /// Deletes a binding rule. An unknown one is a success.
    ///
    /// # Errors
    /// Deleting it again is safe.
    pub async fn delete_binding_rule(&self, id: &str) -> Result<(), Error> {
        self.delete(Target::new("/v1/acl/binding-rule/").name(id)).await
    }

    /// Returns the same permissions, at most 64, with [`Permission::allow`] set.
    ///
    /// # Errors
    /// [`Error::Refused`] with status 401 if access control is off, and for an unknown resource or
    /// access. The request changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn authorize(&self, permissions: &[Permission]) -> Result<Vec<Permission>, Error> {
        let body = encoded(permissions)?;
        let target = Target::new("/v1/internal/acl/authorize");
        let reply = self.client.write(Verb::Post, target, body).await?;
        self.client.parse(&reply)
    }

    /// Returns the settings of access control.
    ///
    /// # Errors
    /// A read changes nothing. Retry if [`Error::is_transient`] returns `true`.
    pub async fn settings(&self, read: &Read) -> Result<AclSettings, Error> {
        self.read_one(Target::new("/v1/lockmesh/acl"), read).await
    }

    /// Changes the settings of access control that are not `None`.
    ///
    /// # Errors
    /// Unless [`Error::certainly_not_done`] is `true`, the change may be in effect. It can be
    /// repeated.
    pub async fn configure(&self, change: &AclChange) -> Result<(), Error> {
        let target = Target::new("/v1/lockmesh/acl");
        self.client.write(Verb::Put, target, encoded(change)?).await.map(|_| ())
    }

    async fn put<T: DeserializeOwned>(&self, target: Target, body: &impl Serialize) -> Result<T, Error> {
        let reply = self.client.write(Verb::Put, target, encoded(body)?).await?;
        self.client.parse(&reply)
    }

    async fn read_one<T: DeserializeOwned>(&self, target: Target, read: &Read) -> Result<T, Error> {
        Ok(self.client.read(target.read(read)).await?.value)
    }

    async fn delete(&self, target: Target) -> Result<(), Error> {
        self.client.write(Verb::Delete, target, Bytes::new()).await.map(|_| ())
    }
}

fn encoded<T: Serialize + ?Sized>(body: &T) -> Result<Bytes, Error> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| Error::Settings(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Fault};

    #[tokio::test]
    async fn each_request_has_consul_path() {
        let fake = Fake::start();
        let client = fake.client();
        let (acl, read) = (client.acl(), Read::default());
        fake.fail("/v1/acl/", Fault::Status(200, "{}"), 20);
        fake.fail("/v1/lockmesh/acl", Fault::Status(200, "{\"Mode\":\"log\",\"DefaultPolicy\":\"deny\"}"), 2);
        acl.bootstrap(Some("s")).await.expect("it is answered");
        acl.create_token(&NewToken::default()).await.expect("it is answered");
        acl.update_token("a", &NewToken::default()).await.expect("it is answered");
        acl.clone_token("a", "").await.expect("it is answered");
        acl.token("a/b", &read).await.expect("it is answered");
        acl.own_token(&read).await.expect("it is answered");
        acl.delete_token("a").await.expect("it is answered");
        acl.update_policy("p", &NewPolicy::default()).await.expect("it is answered");
        acl.policy_by_name("p q", &read).await.expect("it is answered");
        acl.update_role("r", &NewRole::default()).await.expect("it is answered");
        acl.role_by_name("r", &read).await.expect("it is answered");
        let method = NewAuthMethod { name: "m n".into(), ..NewAuthMethod::default() };
        acl.update_auth_method(&method).await.expect("it is answered");
        acl.auth_method("m", &read).await.expect("it is answered");
        acl.update_binding_rule("b", &NewBindingRule::default()).await.expect("it is answered");
        acl.delete_binding_rule("b").await.expect("it is answered");
        acl.configure(&AclChange::default()).await.expect("it is answered");
        let settings = acl.settings(&read).await.expect("it is answered");
        assert_eq!(settings.mode, crate::shape::acl::AclMode::Log);
        for line in [
            "PUT /v1/acl/bootstrap",
            "PUT /v1/acl/token/a/clone",
            "GET /v1/acl/token/a/b",
            "GET /v1/acl/token/self",
            "DELETE /v1/acl/token/a",
            "PUT /v1/acl/policy/p",
            "GET /v1/acl/policy/name/p%20q",
            "PUT /v1/acl/role/r",
            "GET /v1/acl/role/name/r",
            "PUT /v1/acl/auth-method/m%20n",
            "GET /v1/acl/auth-method/m",
            "PUT /v1/acl/binding-rule/b",
            "DELETE /v1/acl/binding-rule/b",
            "PUT /v1/lockmesh/acl",
            "GET /v1/lockmesh/acl",
        ] {
            assert_eq!(fake.count(line), 1, "{line}");
        }
    }

    #[tokio::test]
    async fn authorize_returns_each_verdict() {
        let fake = Fake::start();
        let reply = "[{\"Resource\":\"key\",\"Access\":\"write\",\"Segment\":\"a\",\"Allow\":true}]";
        fake.fail("POST /v1/internal/acl/authorize", Fault::Status(200, reply), 1);
        let asked =
            Permission { resource: "key".into(), access: "write".into(), segment: "a".into(), allow: None };
        let client = fake.client();
        let verdicts = client.acl().authorize(std::slice::from_ref(&asked)).await.expect("it is answered");
        assert_eq!(verdicts, [Permission { allow: Some(true), ..asked }]);
        fake.fail("/v1/acl/token/self", Fault::Status(401, "ACL support disabled"), 1);
        let error = client.acl().own_token(&Read::default()).await.expect_err("access control is off");
        assert!(matches!(error, Error::Refused { status: 401, .. }), "{error}");
    }
}
