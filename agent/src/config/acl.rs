//! `[acl]`: the agent's own tokens. The settings of access control are the cluster's.

use lockmesh_net::sections;

sections! {
    /// Access control on this agent.
    pub struct AclConfig {
        /// `true` if tokens that are set with `PUT /v1/agent/token/NAME` outlive the process.
        enable_token_persistence: bool = false;
        /// The agent's own tokens.
        tokens: AclTokens;
    }

    /// The agent's own tokens.
    pub struct AclTokens {
        /// The secret of the token for requests without one; empty for none.
        default: String = String::new();
    }
}
