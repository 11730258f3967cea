//! What an agent decides on its way to the servers, as pure values.
//!
//! **Invariant:** nothing here knows a clock, a disk, a socket, a thread, a random source or hash
//! order. Time and seeds are arguments; what shall happen is returned. The agent's `upstream` has
//! the connections and carries it out.
//!
//! | module | is |
//! |---|---|
//! | [`lease`] | the node lease: when it is renewed, and until when guards may believe |
//! | [`session_events`] | how a session of this node stands, as its guards are told |
//! | [`session_watch`] | when a session that guards follow is read, and when it is ended |
//! | [`event_log`] | the user events that this host has received |
//! | [`event_filter`] | for whom an event is, by its regular expressions |
//! | [`quorum_client`] | the one value that holds all others: local calls in, answers out; start here |
//! | [`leader_tracker`] | leader discovery: which server leads, which is home, who is asked and dialled |
//! | [`servers`] | the servers, configured and heard of |
//! | [`cluster`] | cluster identity: which cluster the agent belongs to, and which servers it refuses |
//! | [`admission`] | whether the servers take this agent |
//! | [`request_ids`] | one id for all attempts of a command, and how many may be under way |

pub mod admission;
pub mod cluster;
pub mod event_filter;
pub mod event_log;
pub mod leader_tracker;
pub mod lease;
pub mod quorum_client;
pub mod request_ids;
pub mod servers;
pub mod session_events;
pub mod session_watch;
