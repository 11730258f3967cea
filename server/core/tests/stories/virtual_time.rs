//! A single server's time guarantees in virtual time: lower and upper bounds.

use crate::solo::{Solo, entry};
use lockmesh_core::{Input, Outbox, Proposal};
use lockmesh_protocol::command::{Command, KvCommand};
use lockmesh_protocol::id::WallTime;

#[test]
fn one_turn_shares_one_write() {
    let mut solo = Solo::start();
    solo.flushes = false;
    let mut outbox = Outbox::default();
    for number in 0..100 {
        let command = Command::Kv(KvCommand::Set(entry(&format!("key-{number}"))));
        let proposal = Proposal::new(None, WallTime(1), command);
        let token = solo.token();
        solo.core.handle(solo.now, Input::Propose(token, proposal), &mut outbox);
    }
    solo.core.settle(solo.now, &mut outbox);
    assert_eq!(outbox.writes.len(), 1);
    assert_eq!(outbox.writes[0].entries.len(), 100);
}

crate::script::stories! { crate::single::Single, "virtual_time.txt",
    session_expires_between_ttl_and_double renewal_grants_full_window session_without_ttl_never_expires
    restart_renews_session_windows server_pause_delays_session_expiry
    renewal_after_pause_counts_from_arrival proposed_expiry_defeats_renewal
    maximum_session_ttl_is_accepted lock_delay_lasts_its_duration lock_delay_capped_at_60_s
    restart_renews_full_lock_delay many_lock_delays_end_gradually tombstones_expire_after_15_minutes
    reply_waits_for_durable_write crash_keeps_acknowledged_writes_only oversized_command_is_denied_alone
    single_server_reads_immediately minority_verdict_has_no_effect long_failed_member_is_reaped
    failed_member_with_session_is_kept
}
